"""Shapes in signatures are checked whenever tests run; small models and corpora that several tests use."""

import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import shapes

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side
os.environ["NO_PROXY"] = "127.0.0.1,localhost"  # where the tests' servers are
os.environ["no_proxy"] = os.environ["NO_PROXY"]
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup; the commands that tests start hear it all the same
    signal.signal(signal.SIGHUP, lambda *_: None)

with shapes.install(["heed.backends", "heed.model", "heed.training.loss", "heed.decoding"]):
    import heed.decoding.translator
    import heed.training.loss

import torch

from heed.data.batches.batch import Batch
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.runtime.locks import locked
from heed.text.numbers import english, german, number_splits
from heed.text.tokenizer import SpecialIds, Tokenizer, TokenizerSettings, train_tokenizer
from tests.commands import Commands
from tests.servers import RunningServer

torch.set_num_threads(1)
# Profiles of make test, make soak and make check. A busy machine is not a failure.
for profile, most in (("heed", 20), ("many", 300), ("few", 10)):
    options: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile(profile, max_examples=most, **options)
hypothesis.settings.load_profile("heed")


def n_examples(usual: int) -> int:
    """Of a property that takes another number than the profile's; usual: where that is 30."""
    return max(1, usual * hypothesis.settings.default.max_examples // 30)


SPECIAL = SpecialIds()
# Settings that the networks of other toolkits have and the paper's does not, all at once.
OTHERS: dict[str, Any] = {
    "n_encoder_layers": 3,
    "n_decoder_layers": 1,
    "activation": "swish",
    "norm": "pre",
    "attention_bias": True,
    "output_bias": True,
    "positions": "sinusoid-halves",
    "decoder_start": "zero",
}


@pytest.fixture(scope="session")
def small_arch() -> Architecture:
    return Architecture(n_layers=2, d_model=32, d_ff=64, n_heads=4, dropout=0.1)


def sharp_model(
    arch: Architecture, vocab_size: int, src_vocab_size: int | None = None, *, seed: int, factor: float = 1.5
) -> Transformer:
    """Random weights, made sharper than at the start, so that hypotheses differ clearly in probability."""
    torch.manual_seed(seed)
    model = Transformer(arch, vocab_size, src_vocab_size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


@pytest.fixture
def small_model(small_arch: Architecture) -> Transformer:
    return sharp_model(small_arch, 50, seed=7)


@pytest.fixture(scope="session")
def number_tokenizer() -> Tokenizer:
    numbers = number_splits(n_train=3000, n_dev=10, n_test=10).train
    lines = [line for number in numbers for line in (english(number), german(number))]
    return train_tokenizer(lines, TokenizerSettings(vocab_size=600))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with real corpora that may lie beside the project."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (folder / "multi30k").is_dir():
        pytest.skip("no data folder beside the project")
    return folder


# What uses them runs whole commands or trains: `make check` leaves such tests to `make test`, as it does those of other
# programs' formats, and whatever takes a second.
SLOW_FIXTURES = {"heed", "parser_run"}
SLOW_FOLDERS = {"end_to_end", "exchange"}
LONG_FOLDERS = ("end_to_end", "cpu", "backends", "training", "paper", "exchange", "serving", "decoding", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FOLDERS & set(item.path.parts) or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    # Files that take minutes come first, so that no worker is left alone with one at the end.
    items.sort(key=lambda item: LONG_FOLDERS.index(next((f for f in LONG_FOLDERS if f in item.path.parts), "")))


def pytest_runtest_setup() -> None:
    shapes.begin_test()


Heed = Callable[..., subprocess.CompletedProcess]


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Starts commands in forks of processes that have loaded the libraries."""
    servers = Commands()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def heed(commands: Commands) -> Heed:
    """Runs the real command line in a process of its own; input and output are bytes or text.

    code: what runs instead, as by `python -c`, where Heed and its libraries are loaded.
    """

    def run(
        *args: object,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        code: str = "",
    ) -> subprocess.CompletedProcess:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        environment = os.environ | (env or {})
        server = commands.server(environment)
        return server.run(list(map(str, args)), data, cwd=cwd, environment=environment, code=code)

    return run


@pytest.fixture
def serve(commands: Commands) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers that end with the test."""
    with ExitStack() as started:
        yield lambda *args: started.enter_context(RunningServer(commands, *args))


def batch_of(src: torch.Tensor, src_mask: torch.Tensor, tgt_in: torch.Tensor, tgt_mask: torch.Tensor) -> Batch:
    """A batch whose target ids, which only a loss needs, are those that are read."""
    lengths, tgt = tgt_mask.sum(1).numpy(), tgt_in[tgt_mask].numpy()
    return Batch(src[src_mask].numpy(), src_mask.sum(1).numpy(), tgt, tgt, lengths)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model runs on the plain network."""
    monkeypatch.setattr("heed.backends.cpu.search.usable", lambda: False)


def random_pairs(n_pairs: int, *, vocab_size: int = 50, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded random sources with eos, of 1 to 9 ids, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (n_pairs,), generator=generator)
    mask = torch.arange(int(lengths.max()) + 1)[None] <= lengths[:, None]
    src = torch.randint(3, vocab_size, mask.shape, generator=generator)
    src[torch.arange(n_pairs), lengths] = SPECIAL.eos
    return src.masked_fill(~mask, SPECIAL.pad), mask


@pytest.fixture(scope="session")
def parser_run(tmp_path_factory, heed) -> Path:
    """A folder with a treebank in the LDC's layout and a parser that `heed train` made of it.

    It is trained once for all processes that run tests side by side; each has a copy.
    """
    base = tmp_path_factory.getbasetemp()
    trained = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trained-parser"
    trained.mkdir(exist_ok=True)
    with locked(trained, wait=math.inf):
        if not (trained / "whole").exists():
            _train_parser(trained / "parsing", heed)
            (trained / "whole").touch()
    folder = Path(shutil.copytree(trained / "parsing", tmp_path_factory.mktemp("parsing") / "parsing"))
    recipe = folder / "runs" / "small" / "config.toml"  # names the treebank by its whole path
    recipe.write_text(recipe.read_text().replace(str(trained / "parsing"), str(folder)))
    return folder


def _train_parser(folder: Path, heed: Heed) -> None:
    from tests.parsing.corpus import RECIPE as PARSING
    from tests.parsing.corpus import write_treebank

    write_treebank(folder / "treebank")
    (folder / "small.toml").write_text(PARSING.format(treebank="treebank", max_steps=300))
    done = heed("train", "small.toml", "--mirror", ".", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "train: 400 trees." in done.stderr and "dev: 20 trees." in done.stderr
    scores = {score["name"]: score for score in json.loads(done.stdout)["scores"]}
    assert scores["section23 (average)"]["f1"] > 90  # a language so small is learned
    assert "COLLINS" in scores["section23 (average)"]["f1_signature"]
