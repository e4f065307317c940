"""heed translate with what each translation begins with."""

import json

import pytest
from tests.decoding.test_translator import random_model
from tests.end_to_end.test_command_line import assert_one_clear_line

from heed.model_folder import ModelCard, save_model

LINES = "seven\n\nnine hundred\n"


@pytest.fixture(scope="module")
def model(number_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    save_model(folder, random_model(len(number_tokenizer)), number_tokenizer, ModelCard(src="en", tgt="de"))
    return folder


def test_each_line_begins_with_its_own_prefix(heed, model, tmp_path):
    prefixes = tmp_path / "begun.de"
    prefixes.write_text("siebenundz\nblank\nneunh\n", encoding="utf-8")
    lines = heed("translate", model, "--prefixes", prefixes, "--max-tokens", 30, stdin=LINES).stdout.split("\n")
    assert lines[0].startswith("siebenundz") and lines[1] == "" and lines[2].startswith("neunh")
    answers = heed("translate", model, "--prefixes", prefixes, "--n-best", 3, "--json", stdin=LINES).stdout.splitlines()
    for answer, prefix in zip(map(json.loads, answers), ("siebenundz", "", "neunh"), strict=True):
        assert all(found["text"].startswith(prefix) for found in answer["translations"])
    (same,) = heed(
        "translate", model, "--prefix", "siebenundz", "--max-tokens", 30, stdin="seven\n"
    ).stdout.splitlines()
    assert same == lines[0]


def test_prefixes_that_do_not_fit_the_lines_are_one_clear_line(heed, model, tmp_path):
    prefixes = tmp_path / "begun.de"

    def refused(content: bytes, *parts: str, options: tuple[object, ...] = ()) -> None:
        prefixes.write_bytes(content)
        done = heed("translate", model, "--prefixes", prefixes, *options, stdin=LINES)
        assert_one_clear_line(done, *parts)

    refused(b"a\nb\n", f"{prefixes} has 2 lines, but 3 or more are to be translated")
    refused(b"a\nb\nc\nd\n", f"{prefixes} has 4 lines, but 3 are to be translated")
    refused(b"a\nb\n" + b"neunhundert " * 50 + b"\n", f"{prefixes}, line 3: the prefix has at least", "max_tokens=9",
            options=("--max-tokens", 9))  # fmt: skip
    refused(b"a\n\xff\n", f"{prefixes}, line 2: byte 1 (0xff) is not UTF-8")
    refused(b"a\nb\nc\n", "--prefixes has a prefix for each line; leave out --prefix", options=("--prefix", "a"))
    refused(b"a\nb\nc\n", "--prefixes is for lines", options=("--format", "text"))
    assert_one_clear_line(heed("translate", model, "--prefixes", tmp_path / "none", stdin=LINES), "cannot be read")
    faulty = heed("translate", model, "--prefixes", prefixes, stdin=b"seven\n\xff\n")
    assert_one_clear_line(faulty, "standard input, line 2: byte 1 (0xff) is not UTF-8")
