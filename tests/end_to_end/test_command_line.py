"""Every verb through the real command line, on good input and bad."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.samples import sample

import heed as library_of_heed
from heed.apps.commands import app
from heed.backends.cpu.build import has_int8, has_tiles, library
from heed.text.numbers import english, german, number_splits

RECIPE = sample("small.toml")


def write_corpus(folder: Path, *, n_train: int = 200) -> None:
    import gzip

    splits = number_splits(n_train=n_train, n_dev=20, n_test=10)
    for name, words in (("en", english), ("de", german)):
        (folder / f"train.{name}").write_text("".join(f"{words(n)}\n" for n in splits.train), encoding="utf-8")
        dev = "".join(f"{words(n)}\n" for n in splits.dev)
        (folder / f"dev.{name}").write_text(dev, encoding="utf-8")
        (folder / f"dev.{name}.gz").write_bytes(gzip.compress(dev.encode()))
    (folder / "small.toml").write_text(RECIPE, encoding="utf-8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, heed) -> Path:
    """A folder with a corpus, its recipe, and the run that `heed train` made of it."""
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder)
    done = heed("train", "small.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    scores, kept = result["scores"], "average" if result["kept"].startswith("average") else "best checkpoint"
    assert [s["name"] for s in scores] == [
        f"{name} ({title})" for title in (kept, "last checkpoint") for name in ("dev", "held_out")
    ]
    assert all("version" in s["bleu_signature"] and s["perplexity"] > 1 for s in scores)
    return folder


@pytest.fixture
def corpus(tmp_path) -> Path:
    write_corpus(tmp_path)
    return tmp_path


def assert_one_clear_line(done, *parts: str) -> None:
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    error = done.stderr.strip().splitlines()[-1]
    assert error.startswith("heed: "), done.stderr
    for part in parts:
        assert part in error, error


# What should work


def test_help_answers_for_every_verb_with_an_example_and_without_torch(heed):
    def verbs(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
        for name, one in getattr(command, "commands", {}).items():
            yield from verbs(one, *words, name)
        if words and not hasattr(command, "commands"):
            yield words

    found = list(verbs(typer.main.get_command(app)))
    assert len(found) > 25
    for verb in ((), *found):
        done = heed(*verb, "--help")
        assert done.returncode == 0
        assert not verb or ("Example: " in done.stdout and "heed" in done.stdout.split("Example: ")[1]), verb
    code = (
        "import sys, typer.testing; from heed.apps.commands import app\n"
        "typer.testing.CliRunner().invoke(app, ['--help']); "
        "print(sorted(name for name in ('torch', 'numpy') if name in sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


# The commands that measure, for tenths of a second where users' take seconds: what is measured is another test's.
BRIEFLY = """
import heed.apps.bench.decoding_speed, heed.apps.bench.training_speed, heed.apps.commands
heed.apps.bench.training_speed.WINDOW_SECONDS = 0.2
heed.apps.bench.decoding_speed.decoding_speed.__kwdefaults__["seconds"] = 0.5
heed.apps.commands.main()
"""


@pytest.mark.parametrize(("workers", "passes"), [(1, []), (2, ["--consistency", "5"])])
def test_bench_train_tells_speed_ceiling_and_memory(heed, workers, passes):
    shape = ["--preset", "tiny", "--vocab", 300, "--tokens", 256, "--dtype", "fp32", "--workers", workers]
    done = heed("bench", "train", *shape, *passes, "--json", env={"OMP_NUM_THREADS": "2"}, code=BRIEFLY)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["workers"] == workers
    assert (told["dtype"], told["device"], len(told["windows"])) == ("fp32", "cpu", 5)
    assert min(told["windows"]) <= told["target_tokens_per_second"] <= max(told["windows"])
    assert told["utilization"] == pytest.approx(told["model_flops_per_second"] / told["ceiling_flops_per_second"])
    # 6 operations a weight and token, at most: the vocabulary's matrix is used once, on the target side.
    flops_a_token = told["model_flops_per_second"] / told["target_tokens_per_second"] / (2 if passes else 1)
    assert 3 * told["parameters"] < flops_a_token < 9 * told["parameters"]
    assert told["peak_memory_bytes"] > 50e6 and told["step_seconds"] > 0 and told["source_tokens_per_second"] > 0


def test_bench_train_refuses_what_it_does_not_know(heed):
    for wrong in (["--preset", "huge"], ["--dtype", "fp8"], ["--preset", "tiny", "--workers", "64"]):
        assert_one_clear_line(heed("bench", "train", *wrong), wrong[-1])


def test_bench_decode_tells_speed_latency_and_memory(heed):
    assert_one_clear_line(heed("bench", "decode", "--preset", "demo", "--beam", 1001), "setting beam_size")
    shape = ["--preset", "tiny", "--vocab", 300, "--batch", 3, "--src-len", 6, "--tgt-len", 7, "--beam", 2]
    done = heed("bench", "decode", *shape, "--precision", "fp32", "--json", code=BRIEFLY)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["dtype"], told["device"], told["beam"], told["batch"]) == ("fp32", "cpu", 2, 3)
    assert told["target_tokens_per_second"] == pytest.approx(7 * told["sentences_per_second"])
    assert 0 < told["latency_ms_p50"] <= told["latency_ms_p95"] and told["peak_memory_bytes"] > 50e6
    assert_one_clear_line(heed("bench", "decode", "--precision", "int4"), "int4")
    assert_one_clear_line(heed("bench", "decode", "--batch", 64, "--tgt-len", 200), "a search holds 8,192 tokens")
    large = ["--preset", "demo", "--vocab", 20_000, "--beam", 1000, "--batch", 64, "--tgt-len", 100]
    assert_one_clear_line(heed("bench", "decode", *large), "--batch 64: a search with --beam 1000")
    assert_one_clear_line(heed("bench", "decode", env={"HEED_KERNELS": "off"}), "HEED_KERNELS=off: expected 0, 1")


def test_training_says_whether_the_kernels_are_used(heed, corpus):
    def told(name: str, **env: str) -> str:
        done = heed("train", "small.toml", "--run", corpus / name, "--set", "training.max_steps=1", cwd=corpus, env=env)
        assert done.returncode == 0, done.stderr
        lines = ("Heed's kernels cannot be used: ", "Computing on")
        return "\n".join(line for line in done.stderr.splitlines() if line.startswith(lines))

    cache = corpus / "cache"
    no_compiler = told("a", XDG_CACHE_HOME=str(cache), PATH=str(corpus))
    assert "PyTorch's operations alone" in no_compiler and "g++" in no_compiler
    if library() is None:
        return
    (corpus / "c++").write_text("#!/bin/sh\necho out of registers >&2\nexit 1\n")
    (corpus / "c++").chmod(0o755)
    assert "failed" in told("b", XDG_CACHE_HOME=str(cache), PATH=f"{corpus}{os.pathsep}{os.environ['PATH']}")
    assert "Heed's kernels" in told("c")


def test_the_multi30k_recipe_runs_from_a_mirror_folder_to_a_table(heed, data_folder, tmp_path):
    small = ["model.n_encoder_layers=1", "model.n_decoder_layers=1", "model.d_model=16", "model.d_ff=16",
             "training.max_steps=2", "decoding.beam_size=1", "decoding.max_extra_tokens=0",
             "tokenizer.vocab_size=2000"]  # fmt: skip
    settings = [part for setting in small for part in ("--set", setting)]
    done = heed("train", "multi30k-en-de", *settings, "--mirror", data_folder / "multi30k", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train: 29,000 pairs" in done.stderr
    assert re.search(r"test2016 \((average|kept, .*)\) ", done.stdout) and "tok:none" in done.stdout
    assert (tmp_path / "runs" / "multi30k-en-de" / "model" / "model.safetensors").is_file()


def test_a_run_folder_holds_what_the_design_says(trained):
    run = trained / "runs" / "small"
    assert {path.name for path in run.iterdir()} == {
        ".lock", "config.toml", "data", "checkpoints", "metrics.jsonl", "tensorboard", "model",
    }  # fmt: skip
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["16", "24", "8"]
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [e["step"] for e in entries if e["kind"] == "train"] == [8, 16, 24]
    assert {"loss", "perplexity", "greedy_bleu"} <= set(next(e for e in entries if e["kind"] == "validation"))
    readme = (run / "model" / "README.md").read_text()
    assert "BLEU" in readme and "FLOPs" in readme and "sha256" in readme


def test_train_again_does_nothing_new_and_more_steps_go_on(trained, heed):
    again = heed("train", "small.toml", cwd=trained)
    assert again.returncode == 0
    assert "Resumed from step 24" in again.stderr and "step 8/" not in again.stderr
    other = heed("train", "small.toml", "--set", "model.d_ff=64", cwd=trained)
    assert_one_clear_line(other, "model.d_ff was 32, is 64", "--run")


def test_translate_keeps_order_and_empty_lines_and_reads_windows_line_ends(trained, heed):
    model = trained / "runs" / "small" / "model"
    done = heed("translate", model, stdin="seven\n\ntwelve\n   \nseven")
    lines = done.stdout.split("\n")
    assert done.returncode == 0 and len(lines) == 6
    assert lines[1] == lines[3] == "" and lines[0] == lines[4] != ""
    assert heed("translate", model, stdin="seven\r\n\r\ntwelve\r\n   \r\nseven\r\n").stdout == done.stdout
    assert heed("translate", model, stdin="").stdout == ""


def test_n_best_scores_and_json_say_the_same(trained, heed):
    model = trained / "runs" / "small" / "model"
    plain = heed("translate", model, "--n-best", 3, "--scores", stdin="seven\ntwo\n").stdout.splitlines()
    records = [json.loads(line) for line in heed("translate", model, "--n-best", 3, "--json", stdin="seven\ntwo\n")
               .stdout.splitlines()]  # fmt: skip
    assert [record["source"] for record in records] == ["seven", "two"]
    flat = [t for record in records for t in record["translations"]]
    assert plain == [f"{t['score']:.4f}\t{t['text']}" for t in flat]
    assert_one_clear_line(heed("translate", model, "--n-best", 9, stdin="x"), "--n-best 9", "--beam")


def test_a_line_of_ten_thousand_words_is_translated_in_pieces(trained, heed):
    model = trained / "runs" / "small" / "model"
    done = heed("translate", model, "--beam", 1, stdin="one\n" + "seven " * 10_000 + "\ntwo\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert "line 2: 10,001 tokens, translated in 20 pieces." in done.stderr


def test_a_line_is_translated_before_the_next_one_comes(trained, commands):
    command = ["translate", str(trained / "runs" / "small" / "model")]
    with commands.server(os.environ).start(command, environment=os.environ) as process:
        for line in (b"seven", b"", b"twelve"):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            assert bool(process.stdout.readline().strip()) == bool(line)  # would wait for ever
        process.stdin.close()
        assert process.stdout.read() == b"" and process.wait() == 0


def test_what_a_translation_must_be_is_obeyed(trained, heed):
    model = trained / "runs" / "small" / "model"
    begun = heed("translate", model, "--prefix", "vier", "--max-tokens", 6, stdin="seven\nthree\n").stdout.splitlines()
    assert len(begun) == 2 and all(line.startswith("vier") for line in begun)
    drawn = [heed("translate", model, "--sample", 1.0, "--n-best", 4, "--seed", seed, stdin="one\ntwo\n").stdout
             for seed in (1, 1, 2)]  # fmt: skip
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0].count("\n") == 8
    options = ["--sample", 0.8, "--mbr", 20, "--n-best", 5, "--json"]
    risks = [heed("translate", model, *options, stdin="one\n\ntwo\n").stdout for _ in range(2)]
    assert risks[0] == risks[1]
    for line in risks[0].splitlines():
        utilities = [hypothesis["utility"] for hypothesis in json.loads(line)["translations"]]
        assert utilities == [None] or (utilities == sorted(utilities, reverse=True) and 0 < utilities[0] <= 100)
    (best,) = heed("translate", model, "--mbr", 5, "--utility", "bleu", stdin="seven\n").stdout.splitlines()
    found = heed("translate", model, "--beam", 5, "--n-best", 5, stdin="seven\n").stdout.splitlines()
    assert best in found
    twice = heed("translate", model, model, "--scores", stdin="seven\n")
    assert twice.stdout.split("\t")[1] == heed("translate", model, stdin="seven\n").stdout
    in_bf16 = heed("translate", model, "--precision", "bf16", stdin="seven\n")
    if has_tiles():
        assert in_bf16.returncode == 0
    else:
        assert_one_clear_line(in_bf16, "a search in bf16 needs a GPU, or AMX", "take int8 or fp32, which are faster")
    in_python = heed(code=f"import heed; heed.load({str(model)!r}, precision='float32')")
    assert "HeedError: precision 'float32': expected one of auto, fp32, bf16, int8." in in_python.stderr
    in_int8 = heed("translate", model, "--precision", "int8", stdin="seven\n")
    if has_int8():
        assert in_int8.returncode == 0 and in_int8.stdout.strip()
    else:
        assert_one_clear_line(in_int8, "int8", "take fp32")
    assert_one_clear_line(heed("translate", model, "--precision", "fp8", stdin="x"), "--precision fp8")
    assert_one_clear_line(heed("translate", model, "--top-k", 3, stdin="x"), "--sample")
    for options, part in (
        (["--seed", 3], "--seed needs --sample TEMPERATURE"),
        (["--sample", 1, "--mbr", 8, "--n-best", 3, "--length-penalty", 1], "changes only the scores of samples"),
        (["--min-tokens", 5, "--max-tokens", 4], "min_tokens is 5, more than max_tokens, 4"),
        (["--mbr", 5, "--utility", "ter"], "unknown utility 'ter'; known: chrf, bleu"),
        (["--utility", "chrf"], "--utility needs --mbr N"),
        (["--mbr", 5, "--format", "text"], "--mbr is for lines"),
    ):
        assert_one_clear_line(heed("translate", model, *options, stdin="x"), part)
    assert_one_clear_line(heed("translate", model, "--sample", 0, stdin="x"), "temperature")
    too_many = heed("translate", model, "--sample", 1, "--n-best", 1001, stdin="x")
    assert too_many.returncode == 2 and "'--n-best': Input should be less than or equal to 1000" in too_many.stderr
    assert_one_clear_line(heed("translate", model, "--length-penalty-form", "mean", stdin="x"), "length_penalty_form")


def test_only_models_of_one_vocabulary_are_joined(trained, heed, corpus):
    other = heed(
        "train", "small.toml", "--set", "tokenizer.min_frequency=50", "--set", "training.max_steps=1", cwd=corpus
    )
    assert other.returncode == 0, other.stderr
    models = [trained / "runs" / "small" / "model", corpus / "runs" / "small" / "model"]
    files = ["--src", trained / "dev.en"]
    for done in (
        heed("translate", *models, stdin="x"),
        heed("score", *models, *files, "--tgt", trained / "dev.de"),
        heed("evaluate", *models, *files, "--ref", trained / "dev.de"),
    ):
        assert_one_clear_line(done, str(models[1]), "vocabulary")


def test_a_closed_pipe_ends_translate_quietly(trained):
    model = trained / "runs" / "small" / "model"
    command = (
        f"yes seven | head -n 5000 | {sys.executable} -m heed translate {model} --beam 1 --precision fp32 | head -n 1"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.stdout.count("\n") == 1 and done.stderr == ""


def test_the_fastest_precision_is_taken_and_named_and_each_can_be_compared(trained, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    named = re.match(
        r"Searching in (\w+), the fastest precision here \(.+\)(; --precision fp32 is exact)?\.\n",
        heed("translate", model, stdin="twelve\n").stderr,
    )
    assert named and named[1] == library_of_heed.load(model).precision
    (tmp_path / "s").write_text("twelve\nseven\n")
    (tmp_path / "t").write_text("zwölf\nsieben\n", encoding="utf-8")
    files = ["--src", tmp_path / "s", "--ref", tmp_path / "t"]
    done = heed("evaluate", model, *files, "--precision", "all", "--json")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    precisions = ["fp32", *["bf16"] * has_tiles(), *["int8"] * has_int8()]
    assert [result["precision"] for result in results] == precisions
    assert all(result["lines"] == 2 and result["seconds"] > 0 and result["perplexity"] > 1 for result in results)
    alone = json.loads(heed("evaluate", model, *files, "--precision", "fp32", "--json").stdout)
    assert {**alone, "seconds": results[0]["seconds"]} == results[0]
    table = heed("evaluate", model, *files, "--precision", "all").stdout.splitlines()
    assert len(table) == 1 + len(results) + 2 and table[1].split()[:2] == ["fp32", f"{alone['bleu']:.2f}"]
    assert table[-2:] == [f"BLEU {alone['bleu_signature']}", f"chrF2 {alone['chrf_signature']}"]


def test_score_gives_what_translate_found(trained, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    options = ["--precision", "fp32", "--length-penalty", 0.8, "--length-penalty-form", "paper"]
    few = ["--n-best", 50, "--beam", 50, "--max-tokens", 3]
    answer = heed("translate", model, *few, "--json", *options, stdin="twelve\n").stdout
    found = {record["text"]: record for record in json.loads(answer)["translations"]}
    (tmp_path / "s").write_text("twelve\n" * len(found))
    (tmp_path / "t").write_text("".join(f"{text}\n" for text in found), encoding="utf-8")
    files = ["--src", tmp_path / "s", "--tgt", tmp_path / "t"]
    records = [json.loads(line) for line in heed("score", model, *files, "--json", *options).stdout.splitlines()]
    plain = heed("score", model, *files, *options).stdout.splitlines()
    n_same = 0
    for line, record, hypothesis in zip(plain, records, found.values(), strict=True):
        *tokens, eos = record["token_log_probs"]
        total, length = sum(tokens) + eos, len(tokens) + 1
        assert record["log_prob"] == pytest.approx(total) and eos < 0
        assert record["score"] == pytest.approx(total / ((5 + length) / 6) ** 0.8)
        assert line == f"{record['log_prob']:.4f}\t{record['score']:.4f}"
        if not hypothesis["ended"]:  # so early the model ends no sentence, and may spell one as the tokenizer does not
            n_same += sum(tokens) == pytest.approx(hypothesis["log_prob"], abs=1e-4)
    assert n_same > 3


def test_score_takes_the_tokens_that_translate_found_and_an_ensemble(trained, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    exactly = ["--precision", "fp32"]
    done = heed("translate", model, "--n-best", 4, "--json", *exactly, stdin="seven\ntwelve\n")
    lists = [json.loads(line)["translations"] for line in done.stdout.splitlines()]
    assert all(len({t["text"] for t in found}) == len(found) for found in lists)
    n_short = sum(len(found) < 4 for found in lists)  # after so few steps of training
    assert f"{n_short} line" in done.stderr if n_short else "different translations" not in done.stderr
    found = [t | {"source": source} for source, ts in zip(("seven", "twelve"), lists, strict=True) for t in ts]
    (tmp_path / "s").write_text("".join(f"{t['source']}\n" for t in found))
    (tmp_path / "t").write_text("".join(f"{' '.join(t['tokens'])}\n" for t in found), encoding="utf-8")
    files = ["--src", tmp_path / "s", "--tgt", tmp_path / "t"]
    for models in ([model], [model, model]):
        scored = heed("score", *models, *files, "--tokens", "--json", *exactly).stdout.splitlines()
        for t, record in zip(found, map(json.loads, scored), strict=True):
            of_tokens = record["token_log_probs"] if t["ended"] else record["token_log_probs"][:-1]
            assert record["tokens"] == t["tokens"] and sum(of_tokens) == pytest.approx(t["log_prob"], abs=1e-4)
    (tmp_path / "t").write_text("<0xC3>\n" + "zz&z <0xC3>\n" * (len(found) - 1), encoding="utf-8")
    unknown = heed("score", model, *files, "--tokens")
    assert_one_clear_line(unknown, f"{tmp_path / 't'}, line 2: 'zz&z' is not a token of the model's vocabulary")


def test_evaluate_equals_sacrebleu_on_the_same_files(trained, heed, tmp_path):
    import sacrebleu

    references = ["der Hund läuft .", "eine Katze schläft auf dem Sofa ."]
    hypotheses = ["der Hund rennt .", "eine Katze schläft auf einem Sofa ."]
    for name, lines in (("ref", references), ("hyp", hypotheses)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for tokenize in ("13a", "none"):
        done = heed("evaluate", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref", "--tokenize", tokenize, "--json")
        result = json.loads(done.stdout)
        expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenize, force=True)
        assert result["bleu"] == pytest.approx(expected.score, abs=1e-9)
        assert f"tok:{tokenize}" in result["bleu_signature"]
        assert result["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score, abs=1e-9)
    run = trained / "runs" / "small"
    shown = heed("evaluate", run / "model", "--src", trained / "dev.en", "--ref", trained / "dev.de", "--json")
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first = next(entry for entry in recorded if entry["kind"] == "test")
    assert json.loads(shown.stdout)["bleu"] == pytest.approx(first["bleu"], abs=1e-9)
    assert json.loads(shown.stdout)["perplexity"] == pytest.approx(first["perplexity"], rel=1e-4)
    exchanged = heed("evaluate", run / "model", "--src", trained / "dev.de", "--ref", trained / "dev.en")
    assert "should --src and --ref be exchanged?" in exchanged.stderr and "exchanged" not in shown.stderr
    (tmp_path / "others").write_text("eins\n" * len((trained / "dev.de").read_text().splitlines()))
    both = ("--ref", trained / "dev.de", "--ref", tmp_path / "others")
    twice = json.loads(heed("evaluate", run / "model", "--src", trained / "dev.en", *both, "--json").stdout)
    assert "nrefs:2" in twice["bleu_signature"] and twice["bleu"] >= json.loads(shown.stdout)["bleu"]
    assert twice["perplexity"] == json.loads(shown.stdout)["perplexity"]
    ensemble = heed("evaluate", run / "model", run / "model", "--src", trained / "dev.en", *both, "--json")
    assert json.loads(ensemble.stdout)["perplexity"] == pytest.approx(twice["perplexity"], rel=1e-4)


def test_compare_translates_with_model_folders(trained, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    src, ref, own = trained / "dev.en", trained / "dev.de", tmp_path / "translations"
    own.write_text(heed("translate", model, stdin=src.read_text(encoding="utf-8")).stdout, encoding="utf-8")
    done = heed("compare", own, model, ref, "--ref", ref, "--src", src, "--train", trained / "train.de", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    first, same, perfect = facts["systems"]
    for metric, score in same["scores"].items():
        assert score["score"] == first["scores"][metric]["score"] and score["verdict"] == "not significant"
    expected = json.loads(heed("evaluate", model, "--src", src, "--ref", ref, "--json").stdout)
    assert (same["scores"]["BLEU"]["score"], same["scores"]["chrF2"]["score"]) == (expected["bleu"], expected["chrf"])
    assert perfect["scores"]["TER"]["score"] == 0 and facts["counted"] == "training text"
    assert all(recall == 1 for group in facts["frequencies"] for recall in group["recall"][2:])
    assert facts["sentences"][1][0]["source"] in src.read_text(encoding="utf-8").splitlines()


def test_average_and_info(trained, heed, tmp_path):
    run = trained / "runs" / "small"
    shutil.copytree(run, tmp_path / "run")
    done = heed("train", tmp_path / "run", "--set", "training.keep_better=false", cwd=trained)
    assert done.returncode == 0, done.stderr
    assert heed("average", run, "--last", 2, "--out", tmp_path / "two").returncode == 0
    averages = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("two", "run/model")]
    assert averages[0] == averages[1]
    done = heed("average", run, "--last", "best", "--out", tmp_path / "best")
    assert done.returncode == 0, done.stderr
    (chosen,) = (line for line in done.stderr.splitlines() if line.startswith("The best is the "))
    single = {"last checkpoint", "checkpoint of lowest dev loss"}
    name = chosen.removeprefix("The best is the ").removesuffix(".")
    size = 1 if name in single else int(name.split()[-1])
    assert name in done.stderr and done.stdout.strip() == str(tmp_path / "best")
    if name != "checkpoint of lowest dev loss":
        heed("average", run, "--last", size, "--out", tmp_path / "same")
        same = [(tmp_path / out / "model.safetensors").read_bytes() for out in ("best", "same")]
        assert same[0] == same[1]
    for last in ("0", "-1", "Best", "", "1e3", "9" * 5000):
        assert_one_clear_line(heed("average", run, f"--last={last}"), "expected a number from 1", 'or "best"')
    for option in ("--dir", "--mirror"):
        done = heed("average", run, "--last", 2, option, tmp_path, "--out", tmp_path / "none")
        assert_one_clear_line(done, f"{option} is for --last best")
    for path in (run, run / "model", trained / "small.toml"):
        facts = json.loads(heed("info", path, "--json").stdout)
        assert facts["parameters"]["total"] == sum(v for k, v in facts["parameters"].items() if k != "total")
    assert_one_clear_line(heed("average", trained), "no checkpoints")


# What should end in one clear line


def test_recipes_with_faults_are_refused_before_any_work(corpus, heed):
    def recipe(old: str, new: str) -> str:
        assert old in RECIPE
        (corpus / "bad.toml").write_text(RECIPE.replace(old, new), encoding="utf-8")
        return "bad.toml"

    cases = [
        ("max_steps = 24", "max_stepz = 24", ["bad.toml", "training.max_stepz", "did you mean training.max_steps?"]),
        ("max_steps = 24", "max_steps = 24\ndropout", ["bad.toml", "not valid TOML"]),
        ('checkpoint_every = "8 steps"', 'checkpoint_every = "often"', ['"10 steps"']),
        ('dev = ["dev.en", "dev.de.gz"]', 'dev = ["dev.en"]', ["data.dev needs two files"]),
        ('train = ["train.en", "train.de"]', 'train = ["train.en", "nowhere.de"]', ["nowhere.de: no such file"]),
    ]
    for old, new, parts in cases:
        done = heed("train", recipe(old, new), cwd=corpus)
        assert_one_clear_line(done, *parts)
        assert not (corpus / "runs" / "bad" / "data").exists()
    assert_one_clear_line(heed("train", "missing.toml", cwd=corpus), "missing.toml: cannot be read")
    assert_one_clear_line(heed("train", "small.toml", "--set", "training.max_steps", cwd=corpus), "NAME=VALUE")
    assert_one_clear_line(
        heed("train", "small.toml", "--set", "training.warmup=5", cwd=corpus), "did you mean training.warmup_steps?"
    )


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("train.de", b"nur eine Zeile\n", ["train.en has 200 lines", "train.de 1"]),
        ("train.en", b"good\nb\xffd\n" * 100, ["train.en", "cannot be read", "100 of 200"]),
        ("dev.de.gz", b"\x1f\x8b broken", ["dev.de.gz", "damaged gzip"]),
    ],
)  # fmt: skip
def test_faulty_text_files_are_named_and_leave_nothing_half_done(corpus, heed, name, content, parts):
    (corpus / name).write_bytes(content)
    assert_one_clear_line(heed("train", "small.toml", cwd=corpus), *parts)
    left = [path.name for path in (corpus / "runs" / "small").rglob("*")]
    assert not [path for path in left if path.endswith(".part")]
    assert "train" not in left and "model" not in left


def test_a_text_that_was_refused_can_be_mended(corpus, heed):
    good = (corpus / "train.de").read_text(encoding="utf-8")
    (corpus / "train.de").write_text("nur eine Zeile\n", encoding="utf-8")
    assert heed("train", "small.toml", cwd=corpus).returncode == 1
    (corpus / "other.de").write_text(good, encoding="utf-8")  # nor must it be a file of the same name
    done = heed("train", "small.toml", "--set", 'data.train=["train.en", "other.de"]', cwd=corpus)
    assert done.returncode == 0, done.stderr


def test_a_corpus_smaller_than_a_batch_and_than_its_vocabulary_trains(tmp_path, heed):
    write_corpus(tmp_path, n_train=3)
    done = heed("train", "small.toml", "--set", "tokenizer.vocab_size=30000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not tokenizer.vocab_size=30,000; continuing." in done.stderr
    assert "train: 3 pairs" in done.stderr


def test_bytes_that_are_no_utf8_stop_translate_after_the_lines_before(trained, heed):
    done = heed("translate", trained / "runs" / "small" / "model", stdin=b"seven\ntwo\nsch\xf6n\nthree\n")
    assert_one_clear_line(done, "standard input, line 3", "not UTF-8")
    assert len(done.stdout.splitlines()) == 2


def test_folders_that_are_no_model_are_refused(trained, heed, tmp_path):
    run = trained / "runs" / "small"
    assert_one_clear_line(heed("translate", tmp_path / "nowhere", stdin="x"), "nowhere: no such folder")
    assert_one_clear_line(heed("translate", tmp_path, stdin="x"), "not a model folder")
    assert_one_clear_line(heed("translate", run, stdin="x"), f"did you mean {run / 'model'}?")
    assert_one_clear_line(heed("info", tmp_path), "not a model folder")
    assert_one_clear_line(heed("parse", run / "model", stdin="x"), "this model translates")
    assert_one_clear_line(heed("evaluate", "--ref", run), "--hyp")
    assert_one_clear_line(heed("evaluate", "--ref", "x", "--hyp", "y", "--beam", 2), "--hyp is translated already")
    for option in (["--precision", "fp32"], ["--device", "cpu"]):
        told = heed("compare", "a.de", "b.de", "--ref", "ref.de", *option)
        assert_one_clear_line(told, "so --precision and --device have no effect")
    assert_one_clear_line(heed("data", "get", "multi3k"), "did you mean multi30k?")


def test_a_dry_run_tells_what_a_run_takes_and_makes_nothing(corpus, heed):
    done = heed("train", "small.toml", "--dry-run", "--json", cwd=corpus, code=BRIEFLY)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["pairs"] == 200 and told["n_steps"] == 24 and told["workers"] == 1
    assert told["hours"] == pytest.approx(24 * told["step_seconds"] / 3600)
    assert told["peak_memory_bytes"] < told["memory_bytes"]
    # An epoch has whole batches, and learned positions may be fewer than a benchmark's longest sentence has.
    options = ["training.max_epochs=7", "training.batch_tgt_tokens=100000", "training.batch_src_tokens=100000",
               "model.positions=learned", "model.max_positions=20", "decoding.max_extra_tokens=5"]  # fmt: skip
    settings = [part for option in options for part in ("--set", option)]
    done = heed("train", "small.toml", "--dry-run", "--json", *settings, cwd=corpus, code=BRIEFLY)
    assert done.returncode == 0 and json.loads(done.stdout)["n_steps"] == 7, done.stderr
    assert not (corpus / "runs").exists()


def test_a_dry_run_looks_for_a_named_corpus_and_fetches_nothing(tmp_path, heed):
    recipe = '[data]\ncorpus = "multi30k"\nsrc = "en"\ntgt = "de"\n[model]\nn_layers = 1\nd_model = 16\nn_heads = 2\n'
    (tmp_path / "r.toml").write_text(recipe + "[training]\nbatch_src_tokens = 500\nbatch_tgt_tokens = 500\n")
    done = heed("train", "r.toml", "--dry-run", "--set", "tokenizer.vocab_size=600", cwd=tmp_path, code=BRIEFLY)
    assert done.returncode == 0 and "still to be fetched from https://" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "r.toml"]
    assert_one_clear_line(heed("train", "r.toml", "--dry-run", "--mirror", "x", cwd=tmp_path), "no such folder")
    (tmp_path / "mirror").mkdir()
    nothing = heed("train", "r.toml", "--dry-run", "--mirror", "mirror", cwd=tmp_path)
    assert_one_clear_line(nothing, "neither train.en.gz nor train.en is there")


def test_n_best_prints_as_many_lines_for_every_line(trained, heed):
    model = trained / "runs" / "small" / "model"
    lines = "seven\n\n" + "seven " * 600 + "\ntwo\n"
    for options in (["--beam", 4], ["--beam", 40, "--max-tokens", 1], ["--sample", 1]):
        plain = heed("translate", model, "--n-best", 4, *options, stdin=lines)
        assert plain.returncode == 0 and plain.stdout.count("\n") == 16, plain.stderr
        shown = plain.stdout.split("\n")
        assert shown[4:8] == [""] * 4 and shown[9:12] == [""] * 3
    scored = heed("translate", model, "--n-best", 4, "--scores", stdin=lines).stdout.split("\n")
    assert scored[4:8] == ["0.0000\t", *["-inf\t"] * 3] and scored[9:12] == ["-inf\t"] * 3
    records = heed("translate", model, "--n-best", 4, "--json", stdin=lines).stdout.splitlines()
    assert [len(json.loads(record)["translations"]) for record in records] == [4, 1, 1, 4]


def test_options_beyond_their_range_or_no_text_are_one_line(trained, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    for temperature in ("inf", "nan", "1e-320", "-1"):
        done = heed("translate", model, "--sample", temperature, stdin="x")
        assert_one_clear_line(done, "--sample", "temperature")
        assert done.stdout == ""
    for kind in ("meta", "xla", "privateuseone", "nonsense"):
        assert_one_clear_line(heed("translate", model, "--device", kind, stdin="x"), kind, "cpu, cuda, xpu")
    no_utf_8 = os.fsdecode(b"\xff")
    for arguments in (["translate", model, "--prefix", no_utf_8],
                      ["attention", model, no_utf_8, "--out", tmp_path / "a.html"],
                      ["attention", model, "x", "--target", no_utf_8, "--out", tmp_path / "a.html"]):  # fmt: skip
        done = heed(*arguments, stdin="seven\n")
        assert done.returncode == 1
        assert_one_clear_line(done)


# At the end of a training


def commands_at_the_end(shown: str) -> list[list[str]]:
    """The words of each of the commands that `heed train` printed last."""
    lines = shown.partition("\nNext:\n")[2].splitlines()
    assert len(lines) == 3
    return [shlex.split(line) for line in lines]


def test_the_commands_that_training_ends_with_are_right(heed, trained):
    again = heed("train", "small.toml", "--run", "runs/it's small", cwd=trained)
    assert again.returncode == 0, again.stderr
    assert re.search("^Kept: (average of the last 2|best checkpoint .step [0-9]+.): loss ", again.stdout, re.MULTILINE)
    translate, evaluate, serve = commands_at_the_end(again.stdout)
    assert (translate[0], translate[2:4]) == ("echo", ["|", "heed"])
    assert translate[1] in (trained / "dev.en").read_text().splitlines()
    model = "runs/it's small/model"
    assert translate[4:] == ["translate", model] and serve == ["heed", "serve", model]
    assert heed(*translate[4:], stdin=f"{translate[1]}\n", cwd=trained).returncode == 0
    assert evaluate == ["heed", "evaluate", model, "--src", "dev.en", "--ref", "dev.de.gz"]
    assert heed(*evaluate[1:], cwd=trained).returncode == 0


def test_the_commands_of_a_parser_are_right(heed, parser_run):
    done = heed("train", "small.toml", "--mirror", ".", cwd=parser_run)
    assert done.returncode == 0, done.stderr
    parse, score, info = commands_at_the_end(done.stdout)
    model, words, trees = "runs/small/model", "runs/small/lines/section23.words", "runs/small/lines/section23.trees"
    assert (parse[0], parse[2:]) == ("echo", ["|", "heed", "parse", model])
    assert score == ["heed", "parse", model, "<", words, "|", "heed", "evalb", trees, "-"]
    assert info == ["heed", "info", model]
    assert heed(*parse[4:], stdin=f"{parse[1]}\n", cwd=parser_run).stdout.startswith("(")
    parsed = heed(*score[1:3], stdin=(parser_run / words).read_text(), cwd=parser_run)
    scored = heed(*score[7:], stdin=parsed.stdout, cwd=parser_run)
    assert scored.returncode == 0 and "F1" in scored.stdout, scored.stderr


def test_a_training_that_diverges_says_so_in_one_line_and_keeps_its_numbers_short(heed, corpus):
    wild = ("training.learning_rate_factor=1000", "training.warmup_steps=8", "training.checkpoint_every=4 steps")
    options = [word for setting in wild for word in ("--set", setting)]
    done = heed("train", "small.toml", *options, cwd=corpus)
    assert_one_clear_line(
        done, "training has diverged: since step 8, the dev loss", "lower training.learning_rate_factor"
    )
    assert all(len(line) < 130 for line in done.stderr.splitlines() if line.startswith("step "))
    assert not (corpus / "runs" / "small" / "model").exists()
    again = heed("train", "runs/small", cwd=corpus)
    assert_one_clear_line(again, done.stderr.splitlines()[-1])


def test_the_better_model_is_kept_unless_the_recipe_takes_the_papers_way(heed, corpus):
    # Steps that are too large after the first checkpoint, which is then better than the average of the last two by more
    # than rounding changes. (With still larger ones rounding alone decides.)
    options = ["--set", "training.learning_rate_factor=500", "--set", "training.max_steps=40"]
    for keeping, title in ((True, "best checkpoint"), (False, "average")):
        run = corpus / f"{keeping}".lower()
        command = ["train", "small.toml", "--run", run, *options, "--set", f"training.keep_better={run.name}", "--json"]
        models = []
        for _ in range(2):  # called again, it chooses the same
            done = heed(*command, cwd=corpus)
            assert done.returncode == 0, done.stderr
            result = json.loads(done.stdout)
            assert result["scores"][0]["name"] == f"dev ({title})"
            models.append((run / "model" / "model.safetensors").read_bytes())
        assert models[0] == models[1]
        if keeping:
            (step,) = re.findall(r"^best checkpoint \(step ([0-9]+)\): loss ", result["kept"])
            folders = [run / "checkpoints" / name for name in (step, "best")]
            (best,) = (folder for folder in folders if folder.exists())
            assert (best / "model.safetensors").read_bytes() == models[0]
        else:
            assert result["kept"] == "the average, whatever the best checkpoint scores (training.keep_better=false)"
            assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["24", "32", "40"]
