"""The model of a run is the mean of its last good checkpoints, or the best of several on dev; its card says so."""

import json
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import heed
from heed.data.corpora.download import Corpora
from heed.errors import HeedError
from heed.evaluation.bleu import Score
from heed.model_folder import ModelCard, load_model, read_config, read_weights, save_model, write_weights
from heed.runs import average
from heed.runs.average import average_best, average_better, average_run
from heed.runs.recipe import read_recipe
from heed.runs.tasks.evaluation import Evaluation
from heed.runs.tasks.task import task_of
from heed.runs.tasks.translation_task import TranslationTask
from heed.runtime.locks import locked
from heed.runtime.manifest import seal
from heed.runtime.reading import NotNow
from heed.training.logbook import Logbook, read_entries, short
from heed.training.settings import TrainingSettings
from tests.runs.checkpoints import write_checkpoints
from tests.runs.test_start_from import RECIPE, write_recipe


@pytest.fixture
def run(tmp_path, small_arch, number_tokenizer):
    """A run folder with three checkpoints, and their weights by step."""
    return tmp_path, write_checkpoints(tmp_path, [5, 10, 20], small_arch, number_tokenizer)


def test_the_model_is_the_mean_of_the_last_checkpoints(run):
    folder, weights = run
    reports: list[str] = []
    assert average_run(folder, last=2, report=reports.append) == folder / "model"
    averaged = load_model(folder / "model").model.state_dict()
    for name, tensor in averaged.items():
        expected = (weights[10][name].double() + weights[20][name].double()) / 2
        assert torch.equal(tensor, expected.float()), name
    assert reports == [f"Averaged 2 checkpoints (steps 10 to 20) into {folder / 'model'}."]


def test_the_card_says_what_training_cost(run):
    folder, _ = run
    average_run(folder, last=5, report=str, out=folder.parent / "elsewhere")
    card = read_config(folder.parent / "elsewhere")[2]
    assert card.trained_on["average of steps"] == "5, 10, 20"
    assert (card.trained_on["steps"], card.trained_on["time"]) == (20, "3m20s")
    assert card.trained_on["FLOPs as the paper counts"].startswith("2.00e+14 ")  # 200 s × 10^12 a second
    assert float(card.trained_on["FLOPs"]) > 0
    average_run(folder, last=1, report=str, card=ModelCard("fr", "it"))
    card = read_config(folder / "model")[2]
    assert (card.src, card.tgt) == ("fr", "it")
    assert "FLOPs as the paper counts" not in card.trained_on  # a card without a rate


def test_the_search_is_the_one_that_the_run_has_now(run):
    folder, _ = run
    write_recipe(folder)
    (folder / "config.toml").write_text(f"{RECIPE}beam_size = 7\n", encoding="utf-8")
    average_run(folder, last=1, report=str)
    assert read_config(folder / "model").card.decoding["beam_size"] == 7


def test_nothing_in_a_run_is_averaged_while_it_is_trained(run, heed, tmp_path_factory):
    folder, _ = run
    out = tmp_path_factory.mktemp("elsewhere") / "out"
    write_recipe(folder)
    (folder / "config.toml").write_text(RECIPE, encoding="utf-8")
    with locked(folder):
        inside = (["--last", "best"], ["--last", "best", "--out", out], ["--last", 2], ["--out", folder / "mean"])
        for options in inside:
            done = heed("average", folder, *options)
            assert done.returncode == 1 and "is at work there; wait for it" in done.stderr
        elsewhere = heed("average", folder, "--last", 2, "--out", out)
        assert elsewhere.returncode == 0, elsewhere.stderr


def test_a_checkpoint_that_cannot_be_read_now_is_not_left_out(run, monkeypatch):
    folder, _ = run
    real = average.check

    def failing(path, files):
        if path.name == "10":
            raise NotNow("too many open files")
        real(path, files)

    monkeypatch.setattr(average, "check", failing)
    with pytest.raises(NotNow, match="too many open files"):
        average_run(folder, last=2, report=str)


def test_fewer_checkpoints_than_asked_for_are_reported(run):
    reports: list[str] = []
    average_run(run[0], last=5, report=reports.append)
    assert reports[0] == "Only 3 of 5 checkpoints exist; averaging those."


def test_a_damaged_checkpoint_is_left_out(run):
    folder, weights = run
    path = folder / "checkpoints" / "10" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    reports: list[str] = []
    average_run(folder, last=2, report=reports.append)
    assert "damaged" in reports[0] and reports[0].endswith("Left out of the average.")
    averaged = load_model(folder / "model").model.state_dict()
    assert all(torch.equal(tensor, weights[20][name]) for name, tensor in averaged.items())


def test_without_a_good_checkpoint_nothing_is_written(run, tmp_path):
    folder, _ = run
    for path in folder.glob("checkpoints/*/model.safetensors"):
        path.unlink()
    with pytest.raises(HeedError, match="no good checkpoint is left"):
        average_run(folder, last=2, report=str)
    assert not (folder / "model").exists()
    with pytest.raises(HeedError, match="no checkpoints; expected a run folder"):
        average_run(tmp_path / "nothing", last=2, report=str)


def weights_in(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_keeps_what_scores_best_on_dev_and_tells_all_scores(tmp_path):
    # Steps that are far too large: the first checkpoint has the lowest dev loss, the last ones are the worst.
    text = RECIPE.replace('start_from = "given"\n', "").replace("max_steps = 2", "max_steps = 6")
    text = text.replace("keep_checkpoints = 2", "keep_checkpoints = 6").replace("last = 1\n", 'last = "best"\n')
    text = text.replace("factor = 1e-12", "factor = 1e5") + "[model]\nn_layers = 1\nd_model = 16\nd_ff = 24\n"
    recipe = write_recipe(tmp_path, 'preset = "tiny"\n' + text + "[tokenizer]\nvocab_size = 600\n")
    said: list[str] = []
    run = heed.train(recipe, tmp_path / "run", report=said.append)
    entries = [entry for entry in read_entries(tmp_path / "run" / "metrics.jsonl") if entry["kind"] == "average"]
    steps = {entry["name"]: entry["steps"] for entry in entries}
    lowest = steps.pop("checkpoint of lowest dev loss")
    assert lowest in "12345" and steps == {
        "last checkpoint": "6",
        "average of the last 2": "5, 6",
        "average of the last 5": "2, 3, 4, 5, 6",
        "average of the last 6": "1, 2, 3, 4, 5, 6",
    }
    (kept,) = (entry for entry in entries if entry["kept"] == "yes")
    assert kept == max(entries, key=lambda entry: (entry["bleu"], -entry["perplexity"]))
    title = "average" if kept["name"].startswith("average") else f"kept, {kept['name']}"
    assert run.evaluations[0].numbers().items() <= (kept | {"name": f"dev ({title})"}).items()
    (newest,) = (entry for entry in entries if entry["name"] == "last checkpoint")
    assert run.evaluations[1].numbers().items() <= (newest | {"name": "dev (last checkpoint)"}).items()
    assert len([line for line in said if line.startswith("Translating dev with")]) == len(entries)  # each one once
    for n, name in ((1, "last checkpoint"), (2, "average of the last 2"), (5, "average of the last 5")):
        average_run(tmp_path / "run", last=n, out=tmp_path / "other", report=str)
        task = task_of(read_recipe(recipe))
        files = {"dev": (tmp_path / "train.en", tmp_path / "train.de")}
        (alone,) = task.evaluate(tmp_path / "other", files, title="other", report=str)
        (entry,) = (entry for entry in entries if entry["name"] == name)
        assert (entry["bleu"], entry["perplexity"]) == (alone.scores["bleu"].value, alone.perplexity)
        assert (weights_in(tmp_path / "other") == weights_in(run.model)) == (entry == kept)
    card = read_config(run.model).card
    assert card.trained_on["average of steps"] == kept["steps"]
    told = card.trained_on["BLEU on dev of the averages to choose from"]
    assert told == "; ".join(f"{entry['name']}: {entry['bleu']:.2f}" for entry in entries)
    for entry in entries:
        (line,) = (line for line in said if line.startswith(f"{entry['name']}  "))
        assert line.split()[-1] == short(entry["perplexity"])
    assert f"The best is the {kept['name']}." in said
    before = weights_in(run.model)
    heed.train(recipe, tmp_path / "run")  # a finished run: it is scored and chosen again
    assert weights_in(run.model) == before
    assert not list((tmp_path / "run").glob(".*.part"))


@dataclass
class Told(TranslationTask):
    """Scores a model by what is told of its weights, instead of by translating with it."""

    told: dict[bytes, tuple[float, float]]
    ranked_by = "bleu"

    def evaluate(self, model_folder, sets, *, title, report):
        bleu, perplexity = self.told.get(weights_in(model_folder), (0.0, 9.0))
        yield Evaluation(title, 1, {"bleu": Score("BLEU", bleu, "told")}, perplexity)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([(30.0, 2.0), (31.0, 5.0), (30.0, 1.0)], 2),  # BLEU counts first
        ([(30.0, 2.0), (30.0, 1.9), (30.0, 2.0)], 2),  # then perplexity
        ([(30.0, 2.0), (30.0, 2.0), (30.0, 2.0)], 3),  # then the number of checkpoints
        ([(32.0, 2.0), (31.0, 2.0), (30.0, 2.0)], 1),
    ],
)
def test_the_best_is_told_by_its_score_its_perplexity_its_size(run, tmp_path, scores, expected):
    folder, _ = run
    outs = [average_run(folder, last=n, report=str, out=tmp_path / f"of{n}") for n in (1, 2, 3)]
    task = Told({weights_in(out): told for out, told in zip(outs, scores, strict=True)})
    out, _ = average_best(
        folder, task, (folder, folder), settings=TrainingSettings(), report=str, out=tmp_path / "best"
    )
    assert weights_in(out) == weights_in(outs[expected - 1])
    assert read_config(out).card.trained_on["steps"] == 20  # which the choice has cost


def test_the_checkpoint_of_the_lowest_loss_may_be_older_than_those_that_are_kept(run, tmp_path):
    folder, _ = run
    best = (folder / "checkpoints" / "5").rename(folder / "checkpoints" / "best")
    losses = [{"kind": "validation", "step": step, "loss": loss} for step, loss in ((5, 0.1), (10, 0.3), (20, 0.2))]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, losses)))
    said: list[str] = []
    task = Told({weights_in(best): (30.0, 2.0)})
    out, _ = average_best(
        folder, task, (folder, folder), settings=TrainingSettings(), report=said.append, out=tmp_path / "out"
    )
    assert weights_in(out) == weights_in(best)
    assert said[-1] == f"Took the checkpoint at step 5 for {out}."
    assert read_config(out).card.trained_on["average of steps"] == "5"


def test_a_parser_is_chosen_by_f1_and_one_checkpoint_may_win(parser_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(parser_run / "runs" / "small", run)
    worse = run / "checkpoints" / "400"
    shutil.copytree(run / "checkpoints" / "300", worse)
    weights = read_weights(worse / "model.safetensors")
    write_weights(worse / "model.safetensors", {name: -3 * tensor for name, tensor in weights.items()})
    seal(worse)
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = {record["step"]: record["loss"] for record in records if record["kind"] == "validation"}
    lowest = min((200, 300), key=lambda step: losses[step])
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "validation", "step": 400, "loss": float("nan")}) + "\n")
    task = task_of(read_recipe(parser_run / "small.toml"))
    files = task.text_files(run, Corpora(parser_run, None, pytest.fail))
    said: list[str] = []
    out, known = average_best(
        run, task, files.dev, settings=TrainingSettings(), report=said.append, out=tmp_path / "best"
    )
    assert weights_in(out) == weights_in(run / "checkpoints" / str(lowest))
    assert "The best is the checkpoint of lowest dev loss." in said
    assert list(known) == [out, worse] and known[out].scores["f1"].value > known[worse].scores["f1"].value
    assert [line.split()[-2:] for line in said if line.endswith("all gold")] == [["all", "gold"]]


def better(run, losses, last, **settings):
    """What `average_better` chooses: `losses` are told by the number of averaged checkpoints, or by a folder's name."""
    card, said = ModelCard("en", "de"), []
    settings = TrainingSettings(average_last=last, **settings)
    by_weights = {}
    for what, loss in losses.items():
        out = run / "checkpoints" / str(what)
        if isinstance(what, int):
            out = average_run(run, last=what, report=str, out=run.parent / "mean")
        by_weights[weights_in(out)] = loss

    def measure(model):
        save_model(run.parent / "measured", model, load_model(out).tokenizer, card)
        return {"loss": 1.0, settings.best_number: by_weights[weights_in(run.parent / "measured")]}

    with closing(Logbook(run, resumed_step=20, repeated="average", report=said.append)) as logbook:
        title = average_better(run, settings, measure, report=said.append, card=card, logbook=logbook)
    return title, read_config(run / "model").card.trained_on, said


def log_validations(run, name, values):
    lines = [{"kind": "validation", "step": step, name: value} for step, value in values.items()]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_the_best_checkpoint_becomes_the_model_where_the_average_is_worse(run):
    folder, _ = run
    (folder / "checkpoints" / "5").rename(folder / "checkpoints" / "best")
    log_validations(folder, "loss", {5: 3.7, 10: 4.4, 20: 4.5})
    losses = {2: 4.454, "best": 3.724}
    for _ in range(2):  # called again, it chooses and logs the same
        title, trained_on, said = better(folder, losses, 2)
        assert title == "best checkpoint"
        assert said == [
            "On dev, the average of the last 2 has a loss of 4.454, the best checkpoint (step 5) of 3.724.",
            "The average of the last 2 is worse, so the best checkpoint (step 5) is kept (training.keep_better).",
            f"Took the checkpoint at step 5 for {folder / 'model'}.",
        ]
        assert weights_in(folder / "model") == weights_in(folder / "checkpoints" / "best")
        assert trained_on["kept"] == "best checkpoint (step 5): loss 3.724 on dev; the average of the last 2 has 4.454"
        assert (trained_on["steps"], trained_on["average of steps"]) == (20, "5")
        entries = [entry for entry in read_entries(folder / "metrics.jsonl") if entry["kind"] == "average"]
        assert [(entry["steps"], entry["loss"], entry["kept"]) for entry in entries] == [
            ("10, 20", 4.454, "no"),
            ("5", 3.724, "yes"),
        ]


def test_the_average_stays_the_model_where_it_is_as_good(run):
    folder, _ = run
    log_validations(folder, "loss", {5: 3.7, 10: 4.4, 20: 4.5})
    title, trained_on, _ = better(folder, {2: 3.724, "5": 3.724}, 2)
    assert (title, trained_on["average of steps"]) == ("average", "10, 20")
    log_validations(folder, "loss", {20: 4.5})
    title, trained_on, said = better(folder, {1: 4.5}, 1)
    assert (title, trained_on["kept"]) == ("average", "last checkpoint, which is also the best on dev")
    assert said == [f"Took the checkpoint at step 20 for {folder / 'model'}."]  # nothing was measured


def test_by_a_score_the_higher_one_is_better(run):
    folder, _ = run
    log_validations(folder, "greedy_bleu", {5: 30.0, 10: 31.0, 20: 29.0})
    title, trained_on, _ = better(folder, {2: 30.5, "10": 31.0}, 2, best_by="bleu")
    assert (title, trained_on["average of steps"]) == ("best checkpoint", "10")
    assert "greedy_bleu 31.000" in trained_on["kept"]
