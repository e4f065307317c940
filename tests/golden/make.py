"""Makes what lies in this folder: what users of an older Heed have on disk, and what that Heed makes of it.

    git worktree add /tmp/heed-golden/code dd96dba
    cd /tmp/heed-golden && PYTHONPATH=code/src:code python PROJECT/tests/golden/make.py PROJECT/tests/golden

The folder's files stay as that commit wrote them: nothing is made again when Heed changes, but if a release changes
results on purpose, which the changelog then says. A new kind of file gets a folder beside them, made by the commit that
introduced it. In the run, the folder of the texts is called /texts, wherever they lay.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.samples import sample

# PyTorch's operations alone, compiled for no processor in particular and summing in one order: the same bits on every
# x86-64. Set before torch is loaded.
PORTABLE = {
    "HEED_DEVICE": "cpu",
    "HEED_KERNELS": "0",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}
TWO_THREADS = {"OMP_NUM_THREADS": "2"}  # of a run that two workers share
N_STEPS = 300  # of each model
LINES = ["seven", "forty-two", "one hundred twelve", "nine thousand eighty-one", "", "naïve  CAFÉ two", "日本 three"]
SENTENCES = ["the dog sees the cat .", "the bird sleeps .", "the tree gives the house the bird .", "a wug sees ."]
KEY = "a golden key"
HERE = Path("/tmp/heed-golden")

TRANSLATION = sample("half.toml")


def heed(*words: object, env: dict[str, str] | None = None, stdin: str = "") -> str:
    command = [sys.executable, "-m", "heed", *map(str, words)]
    environment = os.environ | PORTABLE | (env or {})
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def losses(run: Path) -> list[list[Any]]:
    entries = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [[e["kind"], e["step"], e["loss"]] for e in entries if e["kind"] in ("train", "validation")]


def translated(model: Path, *options: object, env: dict[str, str] | None = None) -> list[list[dict[str, Any]]]:
    """The translations of each line, best first."""
    out = heed("translate", model, "--json", *options, stdin="".join(f"{line}\n" for line in LINES), env=env)
    return [json.loads(line)["translations"] for line in out.splitlines()]


def write_models(folder: Path) -> None:
    """Each kind of tokenizer, and each value of each choice in an architecture; trained for a moment."""
    from tests.apps.exchange.folders import trained_folder
    from tests.conftest import OTHERS
    from tests.text.test_sentencepiece import ENGLISH, GERMAN, ODD_LINES, trained

    from heed.text.sentencepiece import marian_tokenizer, opus_mt_tokenizer
    from heed.text.tokenizer import TokenizerSettings, train_tokenizer

    small: dict[str, Any] = {"d_model": 16, "d_ff": 24, "n_heads": 2}
    bpe = train_tokenizer([*ENGLISH, *GERMAN], TokenizerSettings(vocab_size=600))
    pieces = train_tokenizer([*ENGLISH, *GERMAN], TokenizerSettings(kind="wordpiece", vocab_size=600))
    raw = HERE / "spm"
    raw.mkdir()
    (raw / "joint.spm").write_bytes(
        trained([*ENGLISH, *GERMAN, *ODD_LINES], model_type="unigram", vocab_size=400, byte_fallback=True)
    )
    (raw / "source.spm").write_bytes(trained(ENGLISH, model_type="bpe", vocab_size=120))
    (raw / "target.spm").write_bytes(trained(GERMAN, model_type="bpe", vocab_size=150))
    sides = [marian_tokenizer(raw / name, raw / name) for name in ("source.spm", "target.spm")]
    table = ["</s>", "<unk>", *sorted({p for side in sides for p in side.tgt.table[2:] if p}), "<pad>"]
    (raw / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    joint = marian_tokenizer(raw / "joint.spm", raw / "joint.spm")
    two = marian_tokenizer(raw / "source.spm", raw / "target.spm")

    trained_folder(
        folder / "byte-pairs", bpe, **small, decoding={"beam_size": 3, "length_penalty": 1.0}, n_steps=N_STEPS
    )
    trained_folder(
        folder / "word-pieces", pieces, **small, share="tgt", positions="learned", max_positions=64, d_k=4, d_v=12,
        dropout=0.2, attention_dropout=0.1, word_dropout=0.1, decoding={"length_penalty_form": "average"},
        n_steps=N_STEPS,
    )  # fmt: skip
    trained_folder(folder / "radius", bpe, **small, radius=2, n_steps=N_STEPS)
    trained_folder(folder / "options", opus_mt_tokenizer(raw), **small | OTHERS, n_steps=N_STEPS)
    trained_folder(
        folder / "one-sentencepiece", joint, **small, positions="sinusoid-t2t", decoder_start="zero", n_steps=N_STEPS
    )
    trained_folder(folder / "two-sentencepieces", two, **small, share="none", activation="gelu", n_steps=N_STEPS)


def write_parser(folder: Path) -> None:
    from tests.parsing.corpus import RECIPE, write_treebank

    write_treebank(HERE / "treebank")
    recipe = RECIPE.format(treebank="treebank", max_steps=300).replace("64", "32")
    (HERE / "parser.toml").write_text(recipe)
    heed("train", "parser.toml", "--mirror", ".")
    shutil.copytree(HERE / "runs" / "parser" / "model", folder)


def write_run(folder: Path) -> None:
    """A run by two workers with a complete teacher, stopped by SIGTERM between two checkpoints."""
    from heed.text.numbers import english, german, number_splits

    splits = number_splits(n_train=400, n_dev=20, n_test=10)
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for name, words in (("en", english), ("de", german)):
        for part, numbers in (("train", splits.train), ("dev", splits.dev)):
            text = "".join(f"{words(n)}\n" for n in numbers)
            for place in (HERE, texts):
                (place / f"{part}.{name}").write_text(text, encoding="utf-8")
    for place in (HERE, texts):
        (place / "half.toml").write_text(TRANSLATION)
    command = [sys.executable, "-m", "heed", "train", "half.toml"]
    run = HERE / "runs" / "half"
    process = subprocess.Popen(command, env=os.environ | PORTABLE | TWO_THREADS, cwd=HERE)
    while not (run / "checkpoints" / "12").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    stopped = json.loads((run / "checkpoints" / "stopped" / "trainer.json").read_text())["step"]
    assert 12 < stopped < 18, stopped
    shutil.copytree(run, folder / "run", ignore=shutil.ignore_patterns("tensorboard", ".lock"))
    for path in [*(folder / "run").rglob("config.toml"), *(folder / "run").rglob("sources.json")]:
        path.write_text(path.read_text().replace(f"{HERE}/", "/texts/"))


def finished(run: Path) -> dict[str, Any]:
    """What the run ends with where it goes on as the commit that began it would have."""
    heed("train", "half.toml", env=TWO_THREADS)
    heed("average", run, "--last", 3, "--out", "average")
    weights = run / "model" / "model.safetensors"
    average = sha256_of(HERE / "average" / "model.safetensors")
    return {"sha256": sha256_of(weights), "average_of_3_sha256": average, "losses": losses(run)}


def write_recipes(folder: Path) -> dict[str, Any]:
    """Recipes with every setting, and what they mean."""
    from heed.config import toml_text
    from heed.runs.recipe import read_recipe

    folder.mkdir()
    everything = read_recipe(HERE / "half.toml").model_dump()
    everything["model"] |= {"n_encoder_layers": 2, "n_decoder_layers": 1, "d_k": 8, "d_v": 8, "radius": 5}
    everything["training"] |= {"max_epochs": 9, "max_minutes": 2.5, "average_last": "best", "keep_checkpoints": 20}
    everything["data"] |= {"train": ["train.en", "train.de"], "dev": ["dev.en", "dev.de"], "added": ["a.en", "a.de"]}
    everything["data"]["tests"] = {"held_out": ["dev.en", "dev.de"]}
    (folder / "every-setting.toml").write_text(toml_text(everything), encoding="utf-8")
    parsing = read_recipe("parsing-gum").model_dump()
    (folder / "parsing.toml").write_text(toml_text(parsing | {"preset": "parsing"}), encoding="utf-8")
    (folder / "half.toml").write_text(TRANSLATION)

    def meaning(name: str) -> dict[str, Any]:
        values = read_recipe(folder / name).model_dump(mode="json")
        text = json.dumps(values).replace(str(folder.resolve()) + "/", "")  # files are taken from the recipe's folder
        return json.loads(text)

    return {path.name: meaning(path.name) for path in sorted(folder.iterdir())}


def main(out: Path) -> None:
    import torch

    if HERE.joinpath("runs").exists():
        raise SystemExit(f"{HERE} holds what an earlier call made; delete all but the code.")
    write_models(out / "models")
    write_parser(out / "parser")
    write_run(out / "half")
    (out / "keys").write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()}  -\n")
    expected: dict[str, Any] = {"torch": torch.__version__, "models": {}}
    for model in sorted((out / "models").iterdir()):
        int8 = translated(model, "--precision", "int8", env={"HEED_KERNELS": "1"})
        expected["models"][model.name] = {
            "fp32": translated(model, "--precision", "fp32"),
            "n_best": translated(model, "--precision", "fp32", "--beam", 4, "--n-best", 3),
            "int8": [best["text"] for best, *_ in int8],
        }
    expected["trees"] = heed("parse", out / "parser", stdin="".join(f"{s}\n" for s in SENTENCES)).splitlines()
    expected["run"] = finished(HERE / "runs" / "half")
    expected["recipes"] = write_recipes(out / "recipes")
    (out / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
