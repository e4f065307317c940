"""What strangers wrote reaches a terminal as text; JSON is JSON."""

import io
import json
import math
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.apps.cli.terminal import print_json, say
from heed.model.architecture import Architecture
from heed.model.transformer import Transformer
from heed.model_folder import ModelCard, save_model
from heed.text.printable import printable

HOSTILE = "\x1b[2J\nheed: forged \u202egnp.exe \udc80"


@given(st.text())
def test_printable_text_is_one_line_without_anything_that_a_terminal_obeys(text):
    shown = printable(text)
    assert len(f"{shown}.".splitlines()) == 1
    assert printable(shown) == shown
    shown.encode("utf-8")


def test_printable_keeps_every_script_and_says_what_it_hides():
    text = "Grüße, 東京 … no\u00a0break ½ 🙂"
    assert printable(text) == text
    assert printable("a\tb\r\n\x1b[0m\x9b\u2028\u202e\ufeff\ue000\udcff") == (
        r"a\tb\r\n\x1b[0m\x9b\u2028\u202e\ufeff\ue000\udcff"
    )
    assert printable("می\u200cخواهم\t", kept="\u200c\t") == "می\u200cخواهم\t"


def test_a_message_is_one_line(capsys):
    say(f"heed: {HOSTILE}: no such folder.")
    assert capsys.readouterr().err == ("heed: \\x1b[2J\\nheed: forged \\u202egnp.exe \\udc80: no such folder.\n")


@given(st.recursive(st.floats() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_json_is_json_and_shows_every_character_without_sending_it_to_the_terminal(value):
    def without_nan(value):
        if isinstance(value, dict):
            return {key: without_nan(item) for key, item in value.items()}
        if isinstance(value, list):
            return [without_nan(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def refuse(constant):
        raise AssertionError(constant)

    for indent in (None, 1):
        with redirect_stdout(io.StringIO()) as written:
            print_json(value, indent=indent)
        text = written.getvalue()
        assert json.loads(text, parse_constant=refuse) == without_nan(value)
        assert printable(text, kept="\n") == text


@pytest.fixture(scope="module")
def hostile_model(tmp_path_factory, number_tokenizer):
    folder = tmp_path_factory.mktemp("hostile") / "model"
    model = Transformer(Architecture(n_layers=1, d_model=16, d_ff=16, n_heads=2), len(number_tokenizer))
    facts = {"corpus": HOSTILE[:-1], "a|b\x1b": "[x](javascript:alert)|<script>\nheed: forged"}
    card = ModelCard(
        "en", "de", trained_on=facts | {"by": "e\x1bn\nheed: forged"}, scores={"\u202e": "1|2"}, decoding={}
    )
    save_model(folder, model, number_tokenizer, card)
    return folder


@pytest.mark.parametrize("verb", [("info",), ("paper", "table2", "--model")])
def test_a_models_card_reaches_neither_terminal_nor_table(heed, hostile_model, verb):
    done = heed(*verb, hostile_model)
    assert done.returncode == 0, done.stderr
    for character in ("\x1b", "\u202e", "\udc80"):
        assert character not in done.stdout
    assert "\nheed: forged" not in done.stdout and "\\nheed: forged" in done.stdout
    if verb[0] == "paper":
        assert r"a\|b" in done.stdout and r"\<script\>" in done.stdout and "[x](" not in done.stdout.replace(r"\[", "")
    as_json = heed(*verb, hostile_model, "--json")
    assert "\x1b" not in as_json.stdout and "\u202e" not in as_json.stdout
    assert "[x](javascript:alert)|<script>\nheed: forged" in list(_leaves(json.loads(as_json.stdout)))


def _leaves(value):
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def test_names_of_files_and_options_cannot_forge_a_line_of_heeds(heed):
    name = "a\x1b[2J\nheed: forged"
    drawing = ["attention", "model", "sentence", "--out", f"{name}.pdf"]
    for arguments in ([name], ["info", name], ["info", "x", name], ["info", f"--{name}"], ["train", name], drawing):
        done = heed(*arguments)
        assert done.returncode in (1, 2)
        assert "\x1b" not in done.stderr and "\nheed: forged" not in done.stderr
        assert r"\x1b[2J" in done.stderr, done.stderr


PROGRAM = """
import sys, heed.apps.commands
@heed.apps.commands.app.command()
def broken():
    {statement}
sys.argv = ["heed", "broken"]
heed.apps.commands.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "status", "parts"),
    [
        (r"raise ValueError('a\x1b\nb')", 70, [r"heed: internal error: ValueError: a\x1b; ", "HEED_DEBUG=1"]),
        ("class Panic(BaseException): pass\n    raise Panic", 70, ["heed: internal error: Panic: "]),
        ("bytearray(10**18)", 1, ["heed: not enough memory"]),
        ("import torch; torch.empty(10**15)", 1, ["heed: not enough memory", "allocate"]),
        ("def f(): f()\n    f()", 1, ["heed: the input is nested too deeply"]),
        ("open('/nowhere/x')", 1, ["heed: /nowhere/x: No such file or directory."]),
    ],
)  # fmt: skip
def test_whatever_happens_is_one_line(statement, status, parts):
    command = [sys.executable, "-c", PROGRAM.format(statement=statement)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert done.stderr.count("\n") == 1 and "\x1b" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_heed_debug_shows_the_traceback_of_an_internal_error():
    command = ["env", "HEED_DEBUG=1", sys.executable, "-c", PROGRAM.format(statement=r"raise ValueError('a\x1b')")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70 and "Traceback" in done.stderr and "\x1b" not in done.stderr
    assert done.stderr.splitlines()[-1] == r"ValueError: a\x1b"
