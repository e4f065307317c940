"""A small training run on a corpus of copies, which tests of the trainer share."""

import math

import torch
from tests.conftest import SPECIAL

from heed.data.batches.mixed_batches import MixedBatches
from heed.data.batches.token_batches import BatchLimits, TokenBatches
from heed.data.corpus.shard import write_corpus
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard
from heed.runtime.device import Machine
from heed.training.checkpoint import Checkpoints
from heed.training.distributed import Workers
from heed.training.settings import TrainingSettings
from heed.training.trainer import train

FP32 = Machine(torch.device("cpu"), torch.float32, "test")
BF16 = Machine(torch.device("cpu"), torch.bfloat16, "test")


def copy_corpus(folder, vocab_size, n_pairs=600, texts=()):
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(3, 20, (int(torch.randint(2, 8, (1,), generator=generator)),), generator=generator).tolist()
        for _ in range(n_pairs)
    ]
    return write_corpus(folder, [(row, row) for row in rows], vocab_size=vocab_size, texts=texts)


def run_training(
    tmp_path,
    tokenizer,
    name,
    *,
    machine=FP32,
    workers=None,
    arch=None,
    stop_after=None,
    report=lambda line: None,
    on_validation=lambda: None,
    falling=True,
    dev_loss=None,
    dev_score=None,
    unigram_loss=math.inf,
    batches=None,
    mix=None,
    is_trained=False,
    **changes,
):
    """Trains on copying; after `stop_after` validations an exception cuts it off, as a killed process would be.

    falling: whether the dev loss falls from validation to validation, if `dev_loss` does not say what it is.
    dev_score: what says the greedy BLEU. batches: those of another corpus. mix: of the first 100 pairs and the others.
    """
    torch.manual_seed(1)
    model = Transformer(arch or Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4), len(tokenizer))
    workers = workers or Workers()
    texts = [("first", 100), ("others", 500)] if mix else ()
    corpus = copy_corpus(tmp_path / name / f"corpus{workers.rank}", len(tokenizer), texts=texts)
    values = {
        "batch_src_tokens": 600,
        "batch_tgt_tokens": 600,
        "warmup_steps": 60,
        "max_steps": 30,
        "checkpoint_every": "10 steps",
        "keep_checkpoints": 2,
        "average_last": 2,
        "report_every": 5,
    }
    settings = TrainingSettings(**(values | changes))
    n_src, n_tgt = settings.batch_src_tokens, settings.batch_tgt_tokens
    limits = BatchLimits(n_src, n_tgt, settings.micro_batch_tokens or 600, settings.seed)
    batches = batches or (
        MixedBatches(corpus, SPECIAL, limits, mix=mix, n_files=[1, 1]) if mix else TokenBatches(corpus, SPECIAL, limits)
    )
    checkpoints = Checkpoints(
        tmp_path / name / "checkpoints",
        keep=settings.keep_checkpoints,
        keep_best=settings.keeps_best,
        tokenizer=tokenizer,
        card=ModelCard("en", "de"),
        report=report,
        workers=workers,
    )
    calls = 0

    def validate(model):
        nonlocal calls
        calls += 1
        if stop_after is not None and calls > stop_after:
            raise KeyboardInterrupt
        on_validation()
        loss = dev_loss() if dev_loss else 1.0 / calls if falling else 1.0
        return {"loss": loss, "greedy_bleu": dev_score() if dev_score else 0.0}

    state = train(
        model,
        batches,
        settings,
        machine,
        workers=workers,
        run=tmp_path / name,
        checkpoints=checkpoints,
        validate=validate,
        report=report,
        unigram_loss=unigram_loss,
        stages=mix.begun_after(batches.sizes) if mix else {},
        is_trained=is_trained,
    )
    return model, state
