"""heed plot: what a run logged becomes lines of text and a picture; a shell completes commands; help in groups."""

import json
import os
import subprocess
import sys

import pytest


def log(folder, losses, *, kind="validation", **more):
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for step, loss in losses.items():
            file.write(json.dumps({"kind": kind, "step": step, "loss": loss, **more}) + "\n")
    return folder


def test_curves_of_two_runs_are_lines_of_text(tmp_path, heed):
    log(tmp_path / "first", {10: 8.0, 20: 4.0, 30: 2.0, 40: 2.5})
    log(tmp_path / "second", {10: 8.0, 20: 3.0})
    log(tmp_path / "second", {20: 3.5, 30: 2.25})  # it was resumed from step 10
    log(tmp_path / "second", {10: 9.0}, kind="train", learning_rate=0.001)
    log(tmp_path / "first", {21: 0.0}, kind="stage")
    done = heed("plot", f"a={tmp_path / 'first'}", str(tmp_path / "second"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    begin = lines.index("dev loss, nats a token, from 2.000 (▁) to 4.500 (█)")
    assert lines[begin + 1] == "  █▇▁▂  a: steps 10 to 40"
    assert lines[begin + 2] == "  8.000 → 2.500; lowest 2.000 at step 30; new stage at step 21"
    assert lines[begin + 4] == "  8.000 → 2.250; lowest 2.250 at step 30"
    assert any(line.startswith("learning rate") for line in lines)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_curves_are_a_picture(tmp_path, heed, suffix):
    pytest.importorskip("matplotlib")
    run = log(tmp_path / "first", {10: 8.0, 20: 4.0}, greedy_bleu=1.5)
    log(run, {11: 0.0}, kind="stage")
    assert heed("plot", run, "--out", tmp_path / f"curves.{suffix}").returncode == 0
    content = (tmp_path / f"curves.{suffix}").read_bytes()
    assert b"dev BLEU, greedy" in content if suffix == "svg" else content.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such run folder."),
        (["empty"], "no training and no validation is logged there; name a run folder."),
        (["begun"], "no training and no validation is logged there; train it on."),
        (["good", "good"], "good: two runs would be called good; name them, as in first=good."),
        (["good", "--out", "curves.pdf"], "expected a name that ends in .svg or .png; without --out it is text."),
    ],
)
def test_what_cannot_be_plotted_is_one_line(tmp_path, heed, words, message):
    for name in ("empty", "begun"):
        (tmp_path / name).mkdir()
    (tmp_path / "begun" / "config.toml").touch()
    log(tmp_path / "good", {1: 2.0})
    done = heed("plot", *words, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith(message + "\n") and done.stderr.count("\n") == 1


def test_a_shell_completes_commands_and_options():
    def completed(words: str, number: int) -> list[str]:
        asked = {"_HEED_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        command = [sys.executable, "-m", "heed"]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | asked).stdout.split()

    assert completed("heed transl", 1) == ["translate", "translate-file", "translate-shards"]
    assert "--max-tokens" in completed("heed translate --max", 2)


def test_help_has_every_command_in_one_group_with_its_whole_sentence(heed):
    from heed.apps.commands import COMMANDS, PLACES

    text = heed("--help").stdout
    assert "..." not in text.partition("\n\n")[2] and [title for title in COMMANDS if f"\n{title}:\n" not in text] == []
    assert sorted(PLACES) == sorted(
        line.split()[0]
        for line in text.splitlines()
        if line[:2] == "  " and line[2:3].isalpha() and "  " in line[2:].strip()
    )
