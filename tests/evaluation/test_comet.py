"""COMET: its own program's scores, tested for significance as the others are; whatever it does, one clear line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from heed.apps.comparison.statistics import compare
from heed.errors import HeedError
from heed.evaluation.comet import comet_scores

# A COMET model of random weights, with an encoder of its own, so that nothing needs to be downloaded.
MAKE_MODEL = """
import sys, sentencepiece, torch, yaml
from comet.models import RegressionMetric
from pathlib import Path
from pytorch_lightning import Trainer
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

folder = Path(sys.argv[1])
encoder = folder / "encoder"
encoder.mkdir(parents=True)
(folder / "text").write_text("".join(f"a dog runs {i}\\nein hund rennt {i}\\n" for i in range(300)))
options = {"model_prefix": str(encoder / "pieces"), "vocab_size": 60, "hard_vocab_limit": False}
sentencepiece.SentencePieceTrainer.train(input=str(folder / "text"), **options)
tokenizer = XLMRobertaTokenizerFast(vocab_file=str(encoder / "pieces.model"))
tokenizer.save_pretrained(encoder)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=130, **sizes).save_pretrained(encoder)
torch.manual_seed(0)
settings = {"encoder_model": "XLM-RoBERTa", "pretrained_model": str(encoder), "hidden_sizes": [16]}
model = RegressionMetric(load_pretrained_weights=False, layer_transformation="softmax", **settings)
trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
trainer.strategy.connect(model)
trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt")
(folder / "hparams.yaml").write_text(yaml.safe_dump({"class_identifier": "regression_metric"}))
"""

# Writes each line's length as its score, in COMET's form.
SCORES_LENGTHS = """
import json, sys
words = sys.argv[1:]
names = words[words.index("-t") + 1 : words.index("--gpus=0")]
lines = {name: open(name, encoding="utf-8").read().splitlines() for name in names}
scores = {name: [{"COMET": len(line) / 100} for line in own] for name, own in lines.items()}
json.dump(scores, open("scores.json", "w"))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program of this Python source into PATH as comet-score."""

    def put(source: str) -> None:
        path = tmp_path / "bin" / "comet-score"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)

    return put


@pytest.mark.skipif(shutil.which("comet-score") is None, reason="COMET is not in PATH")
def test_scores_are_those_of_comet_itself(heed, tmp_path):
    own_python = Path(str(shutil.which("comet-score"))).with_name("python")
    subprocess.run([own_python, "-c", MAKE_MODEL, tmp_path / "model"], check=True)
    files = {
        "src": ["a dog runs", "a dog\rsleeps", "", "two dogs"],
        "ref": ["ein hund rennt", "ein hund schläft", "nichts", "zwei hunde"],
        "one": ["ein hund", "ein hund schläft", "nein", "-t"],
        "two": ["ein hund rennt", "hund", "nichts", "zwei \u2028 hunde"],
    }
    for name, lines in files.items():
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    model = Path("model", "checkpoints", "model.ckpt")
    done = heed("compare", "one", "two", "--ref", "ref", "--src", "src", "--comet", model, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    code = (
        "import json, sys; from comet import load_from_checkpoint; "
        "model = load_from_checkpoint(sys.argv[1]).half().eval(); "
        "print(json.dumps(model.predict(json.loads(sys.argv[2]), gpus=0, progress_bar=False).scores))"
    )
    for system, name in zip(facts["systems"], ("one", "two"), strict=True):
        rows = zip(files["src"], files[name], files["ref"], strict=True)
        data = [{"src": s.replace("\r", " "), "mt": t, "ref": r} for s, t, r in rows]
        shown = subprocess.run(
            [own_python, "-c", code, model, json.dumps(data)], cwd=tmp_path, capture_output=True, check=True
        )
        expected = json.loads(shown.stdout.splitlines()[-1])
        assert system["scores"]["COMET"]["score"] == pytest.approx(100 * mean(expected), abs=0.02)
    assert f"model:{model}" in facts["signatures"]["COMET"]


@pytest.mark.slow
def test_comet_is_tested_for_significance_as_the_other_metrics_are(program):
    program(SCORES_LENGTHS)
    generator = Random(1)
    references = ["x" * generator.randint(5, 30) for _ in range(60)]
    longer = [line + "xx" for line in references]
    mixed = [line + generator.choice(["", "xxx"]) if generator.random() < 0.2 else line[:-1] for line in references]
    systems = [("first", references), ("longer", longer), ("mixed", mixed), ("same", references)]
    comparison = compare(systems, references, sources=references, comet="some/model")
    scores = {system.name: system.scores["COMET"] for system in comparison.systems}
    for name, lines in systems:
        assert scores[name].score == pytest.approx(mean(map(len, lines)))
        assert scores[name].mean == pytest.approx(scores[name].score, abs=1) and scores[name].half_width > 0
    # Every sentence gains two, so every resample does: 1 / (1000 + 1).
    assert (scores["longer"].verdict, scores["longer"].p_bootstrap) == ("better", pytest.approx(1 / 1001))
    assert scores["longer"].difference == pytest.approx(2)
    assert scores["longer"].p_randomisation < 0.001
    assert scores["mixed"].verdict == "worse"
    assert (scores["same"].verdict, scores["same"].p_randomisation) == ("not significant", 1)
    assert "seed:12345" in comparison.signatures["COMET"] and "model:some/model" in comparison.signatures["COMET"]


def test_comet_is_found_by_a_relative_path(program, monkeypatch, tmp_path):
    program(SCORES_LENGTHS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin")
    assert comet_scores("model", [["four"]], sources=["a"], references=["b"]) == [[0.04]]


def test_the_other_metrics_are_shown_if_comet_fails(program, heed, tmp_path):
    program("import sys; sys.exit('no such model')")
    for name, lines in (("a", "one\ntwo\n"), ("b", "one\nthree\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    done = heed("compare", "a", "b", "--ref", "a", "--src", "a", "--train", "b", "--comet", "none", cwd=tmp_path)
    assert done.returncode == 1 and "no such model; the other metrics are complete." in done.stderr
    assert "BLEU" in done.stdout and "occurrences in the training text" in done.stdout and "COMET" not in done.stdout


@pytest.mark.parametrize(("visible", "expected"), [("", "1"), ("4,7", "7")])
def test_comet_computes_on_the_gpu_that_was_chosen(program, monkeypatch, visible, expected):
    program(SCORES_LENGTHS.replace("--gpus=0", "--gpus=1") + "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == "
            f"'{expected}'\n")  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert comet_scores("model", [["four"]], sources=["a"], references=["b"], gpu=1) == [[0.04]]


def test_what_comet_fails_at_is_said_in_one_line(program, monkeypatch, tmp_path, heed):
    texts = {"sources": ["a", "b"], "references": ["c", "d"]}
    cases = {
        "import sys; print('KeyError: no such model', file=sys.stderr); sys.exit(3)": r"status 3\): KeyError: no such",
        "import sys; sys.exit(1)": "it says nothing",
        "pass": "wrote no scores",
        "open('scores.json', 'w').write('[')": "wrote no scores",
        "open('scores.json', 'w').write('[' * 100_000)": "wrote no scores",
        "open('scores.json', 'w').write('[]')": "wrote no scores",
        """open('scores.json', 'w').write('{"0": [{"COMET": 1}]}')""": "every sentence a finite score",
        """open('scores.json', 'w').write('{"0": [{"COMET": 1}, {"COMET": NaN}]}')""": "every sentence a finite score",
    }
    for source, message in cases.items():
        program(source)
        with pytest.raises(HeedError, match=message):
            comet_scores("model", [["e", "f"]], **texts)
    with pytest.raises(HeedError, match=r"no\.ckpt: there is no such"):
        comet_scores("no.ckpt", [["e", "f"]], **texts)
    (tmp_path / "text").write_text("a\n", encoding="utf-8")
    compared = ("compare", "text", "text", "--ref", "text", "--comet", "model")
    monkeypatch.setenv("PATH", str(tmp_path))
    for arguments, message in (
        (compared, "--comet needs the source lines"),
        ((*compared, "--src", "text"), "comet-score is not in PATH"),
    ):
        done = heed(*arguments, cwd=tmp_path)
        assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1
