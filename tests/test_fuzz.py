"""Mutated model folders, tokenizers, recipes and trees: each ends in success or in one line.

HEED_FUZZ=20000 python -m pytest tests/test_fuzz.py    # this many mutations instead of 80

Every mutation is tried by the real command in a forked process, so that no signal, endless loop or appetite for memory
goes unnoticed.
"""

import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heed.apps.commands import main
from heed.backends.cpu.build import library
from heed.errors import HeedError
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.runtime.manifest import seal
from heed.text.tokenizer import Tokenizer, TokenizerSettings, train_tokenizer
from tests.samples import sample

pytestmark = pytest.mark.slow

N_TARGETS = 4
fuzzed = settings(max_examples=int(os.environ.get("HEED_FUZZ", "80")) // N_TARGETS, database=None, print_blob=True)
seeds = st.integers(0, 2**63)
MOST_SECONDS, MOST_BYTES = 120, 3 * 2**30

HOSTILE = (
    *(None, True, False, 0, 1, -1, 2, 3, 255, 256, 65_535, 2**31 - 1, 2**31, 2**63, 10**30, -(10**30)),
    *(0.5, -0.0, 1e-320, 3e38, 1e308, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "a", "Ġ", "\x1b]0;owned\x07", "a\nheed: forged", "\u202e", "../../../etc/passwd", "/dev/zero"),
    "x" * 9999,
    *([], {}, [[]], [1, 2], ["a", "b"], {"a": 1}, {"type": "Lowercase"}, {"type": "NFKC"}),
    [[[[[[[[[[]]]]]]]]]],
    {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x" * 1000},
)  # fmt: skip
TREE = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (JJ small) (NN cat))) (. .)))"
RECIPE = sample("mutated.toml")


def attempt(act: Callable[[], object], *, stdin: bytes = b"", folder: Path) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a forked process that does this; a signal fails the test."""
    for name, content in (("in", stdin), ("out", b""), ("err", b"")):
        (folder / name).write_bytes(content)
    child = os.fork()
    if child == 0:
        status = 99
        try:
            signal.alarm(MOST_SECONDS)
            torch.set_num_threads(1)  # an earlier test may have used more, which this process does not have
            resource.setrlimit(resource.RLIMIT_DATA, (2 * MOST_BYTES, 2 * MOST_BYTES))
            for number, name in enumerate(("in", "out", "err")):
                os.dup2(os.open(folder / name, os.O_RDWR), number)
            # pytest has put its own there.
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
            act()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except HeedError as error:
            sys.stderr.write(f"heed: {error}\n")
            status = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    said, error = ((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    assert os.WIFEXITED(status), f"ended by signal {os.WTERMSIG(status)}: {error[-2000:]}"
    assert usage.ru_maxrss * 1024 < MOST_BYTES, f"took {usage.ru_maxrss / 1024:,.0f} MiB"
    return os.WEXITSTATUS(status), said, error


def check_command(*arguments: object, stdin: bytes = b"", folder: Path) -> str:
    """What a command prints. It ends well or in one line."""

    def act() -> None:
        sys.argv = ["heed", *map(str, arguments)]
        main()

    status, said, error = attempt(act, stdin=stdin, folder=folder)
    assert status in (0, 1), error[-3000:]
    assert "Traceback" not in error and "\x1b" not in error + said, error[-3000:]
    if status:
        assert [line.startswith("heed: ") for line in error.splitlines()].count(True) == 1, error[-3000:]
        assert error.splitlines()[-1].startswith("heed: "), error[-3000:]
    return said


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """Cut, with bits flipped, with a stretch repeated, removed or made of noise."""
    result = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(result) + 1)
        end = min(len(result), at + draw.choice((1, 2, 8, 100)))
        match draw.randrange(5):
            case 0:
                del result[at:]
            case 1 if at < len(result):
                result[at] ^= 1 << draw.randrange(8)
            case 2:
                result[at:at] = result[at:end] * draw.choice((1, 50))
            case 3:
                del result[at:end]
            case _:
                result[at:end] = draw.randbytes(end - at)
    return bytes(result)


def mutated_value(value: Any, draw: random.Random) -> Any:
    """The same JSON or TOML with one of its values replaced, removed, renamed or put beside another."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.9:
        result = value.copy()
        keys = list(result) if isinstance(result, dict) else range(len(result))
        key = draw.choice(keys)
        match draw.randrange(8):
            case 0:
                del result[key]
            case 1:
                result[key] = draw.choice(HOSTILE)
            case 2 if isinstance(result, dict):
                result[draw.choice(("", "x", "type", "vocab", "\x1b[2J"))] = result.pop(key)
            case 3 if isinstance(result, dict):
                result[key] = result[draw.choice(keys)]
            case _:
                result[key] = mutated_value(result[key], draw)
        return result
    if type(value) is int and draw.random() < 0.5:
        return draw.choice((value + 1, value - 1, -value, 1000 * value))
    return draw.choice(HOSTILE)


def mutate_json(path: Path, draw: random.Random) -> None:
    if draw.random() < 0.8:
        value = mutated_value(json.loads(path.read_text(encoding="utf-8")), draw)
        path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), draw))


def mutate_weights(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    match draw.randrange(3):
        case 0:
            path.write_bytes(mutated_bytes(content, draw))
            return
        case 1:
            header = mutated_value(header, draw)
        case _:
            for _ in range(draw.choice((1, 10, 10_000))):
                worst = draw.choice((float("nan"), float("inf"), -3e38, 3e38, 1e-45, 1e10, 0.0))
                struct.pack_into("<f", data, 4 * draw.randrange(len(data) // 4), worst)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture(scope="module")
def good(tmp_path_factory, number_tokenizer) -> Path:
    """Folders of two models, one of them a parser."""
    folder = tmp_path_factory.mktemp("good")
    library()
    trees = ["(S", "(NP", "(VP", ")S", ")NP", ")VP", "DT", "NN", "VBZ", "JJ", "."]
    of_trees = train_tokenizer(["the dog sees a small cat ."] * 9, TokenizerSettings(vocab_size=600), sorted(trees))
    decoding = {"beam_size": 3, "max_extra_tokens": 20}
    lexicon = {"words": "the dog a", "word_tags": "DT NN VBZ JJ", "sign_tags": {".": "."}}
    parsing = {"leaves": "tags", "functions": False, "lexicon": lexicon}
    for name, tokenizer, card in (
        ("translator", number_tokenizer, ModelCard("en", "de", decoding, {"pairs": 3}, {"dev": "BLEU 1.0"})),
        ("parser", of_trees, ModelCard("en", "trees", decoding, parsing=parsing)),
    ):
        torch.manual_seed(1)
        model = Transformer(Architecture(n_layers=1, d_model=32, d_ff=16, n_heads=1), len(tokenizer))
        save_model(folder / name, model, tokenizer, card)
    return folder


def copied(good: Path, name: str, tmp: Path) -> Path:
    shutil.rmtree(tmp / name, ignore_errors=True)
    return shutil.copytree(good / name, tmp / name)


@fuzzed
@example(seed=50580987)  # weights of which a search makes infinite scores of both signs
@given(seed=seeds)
def test_a_mutated_model_folder(good, tmp_path_factory, seed):
    draw, tmp = random.Random(seed), tmp_path_factory.getbasetemp()
    kind = draw.choice(("translator", "parser"))
    folder = copied(good, kind, tmp)
    if draw.random() < 0.5:
        mutate_json(folder / "config.json", draw)
    else:
        mutate_weights(folder / "model.safetensors", draw)
    if draw.random() < 0.9:
        seal(folder)
    else:
        mutate_json(folder / "manifest.json", draw)
    verb = draw.choice(("translate", "info", "json")) if kind == "translator" else draw.choice(("parse", "info"))
    match verb:
        case "json":
            said = check_command("info", folder, "--json", folder=tmp)
            json.loads(said or "{}", parse_constant=pytest.fail)
        case "info":
            check_command("info", folder, folder=tmp)
        case _:
            options = ["--precision", draw.choice(("fp32", "auto"))]
            check_command(verb, folder, *options, stdin=b"one two three\n\nfour \xc3\xa4\n", folder=tmp)


@fuzzed
@given(seed=seeds)
def test_a_mutated_tokenizer(good, tmp_path_factory, seed):
    draw, tmp = random.Random(seed), tmp_path_factory.getbasetemp()
    kind, verb = draw.choice((("translator", "translate"), ("parser", "parse")))
    folder = copied(good, kind, tmp)
    for _ in range(draw.choice((1, 1, 3))):
        if (folder / "tokenizer.json").read_bytes()[:1] == b"{" and draw.random() < 0.9:
            try:
                mutate_json(folder / "tokenizer.json", draw)
            except ValueError:  # mutated before
                break
    seal(folder)
    check_command(verb, folder, stdin="nine hundred ä🐕\n\n‮x\n".encode(), folder=tmp)


@fuzzed
@given(seed=seeds)
def test_a_mutated_recipe(tmp_path_factory, seed):
    import tomllib

    import tomli_w

    draw, tmp = random.Random(seed), tmp_path_factory.getbasetemp()
    content = RECIPE.encode()
    if draw.random() < 0.7:
        value = mutated_value(tomllib.loads(RECIPE), draw)
        try:
            content = tomli_w.dumps(value).encode()
        except (TypeError, AttributeError):  # no TOML: null, for example
            content = mutated_bytes(content, draw)
    else:
        content = mutated_bytes(content, draw)
    (tmp / "recipe.toml").write_bytes(content)
    check_command("info", tmp / "recipe.toml", folder=tmp)


@fuzzed
@given(seed=seeds)
def test_a_mutated_file_of_trees(tmp_path_factory, seed):
    draw, tmp = random.Random(seed), tmp_path_factory.getbasetemp()
    lines = [TREE] * draw.choice((1, 2, 200))
    (tmp / "gold.trees").write_text("\n".join(lines) + "\n")
    content = (tmp / "gold.trees").read_bytes()
    piece = draw.choice((b"(", b")", b"(NP ", b" ", b"\n", b"(-NONE- *)", b"\xff", b"(a" * 9))
    at = draw.randrange(len(content))
    content = content[:at] + piece * draw.choice((0, 1, 300, 30_000)) + content[at:]
    (tmp / "parsed.trees").write_bytes(mutated_bytes(content, draw) if draw.random() < 0.7 else content)
    names = [tmp / "gold.trees", tmp / "parsed.trees"]
    check_command("evalb", *names[:: draw.choice((1, -1))], *["--verbose"] * draw.randrange(2), folder=tmp)


def test_what_is_not_mutated_ends_well(good, tmp_path):
    text = b"one two three\n\nfour\n"
    assert check_command("translate", good / "translator", stdin=text, folder=tmp_path).count("\n") == 3
    assert check_command("parse", good / "parser", stdin=text, folder=tmp_path).count("(TOP") == 2
    assert isinstance(Tokenizer.load(good / "parser" / "tokenizer.json"), Tokenizer)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert "n_layers: 2" in check_command("info", tmp_path / "recipe.toml", folder=tmp_path)
