"""A package of somebody else adds a network, a schedule and a format; and a script a network of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.end_to_end.test_command_line import assert_one_clear_line, write_corpus
from torch import Tensor

import heed as package
from heed.backends.dispatch import backend_for
from heed.backends.reference import ReferenceBackend
from heed.errors import HeedError
from heed.model.transformer import Transformer
from heed.model_folder import load_model, read_config

PROJECT = Path(__file__).resolve().parents[2]
CHANGES = ["--set", "model.network=GatedTransformer", "--set", "training.schedule=triangle"]
CHANGES += ["--set", "training.warmup_steps=2"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the package, installed as pip does it."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(PROJECT / "tests" / "extension", folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", folder / "packages", folder / "source"], check=True)
    return folder / "packages"


@pytest.fixture(scope="module")
def trained(installed, tmp_path_factory, heed) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    write_corpus(folder)
    done = heed("train", "small.toml", *CHANGES, cwd=folder, env={"PYTHONPATH": str(installed)})
    assert done.returncode == 0, done.stderr
    assert "PyTorch's operations compute the network: it has network = GatedTransformer" in done.stderr
    return folder


def test_its_network_is_trained_averaged_and_used_by_name(trained, installed, heed):
    model, env = trained / "runs" / "small" / "model", {"PYTHONPATH": str(installed)}
    assert read_config(model).arch.network == "GatedTransformer"
    trained_on = read_config(model).card.trained_on
    assert trained_on["network's package"] == trained_on["schedule's package"] == "heed-gated 0.1"
    for command in (["translate", model], ["info", model], ["average", trained / "runs" / "small", "--last", "1"]):
        done = heed(*command, stdin="seven\n", env=env)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    rates = [line for line in (trained / "runs" / "small" / "metrics.jsonl").read_text().splitlines() if "rate" in line]
    assert rates
    done = heed("export", model, trained / "names", "--to", "names", env=env)
    assert done.returncode == 0, done.stderr
    assert "encoder.0.feed_forward.gate.weight" in (trained / "names" / "names.txt").read_text().split("\n")


def test_without_its_package_every_command_refuses_it_in_one_line(trained, heed, tmp_path):
    model, run = trained / "runs" / "small" / "model", trained / "runs" / "small"
    (tmp_path / "line").write_text("seven\n")
    evaluated = ["evaluate", model, "--src", tmp_path / "line", "--ref", tmp_path / "line"]
    for command in (
        *(["translate", model], ["info", model], ["serve", model, "--port", "0"], ["average", run, "--last", "1"]),
        *(evaluated, ["export", model, tmp_path / "out", "--to", "huggingface"], ["train", run]),
    ):
        done = heed(*command, cwd=trained)
        is_recipe = command[0] in ("average", "train")  # which has the package's schedule, too
        said = "schedule='triangle': expected one of paper, " if is_recipe else "its network is of the class Gated"
        assert_one_clear_line(done, said, "package that offers it" if not is_recipe else "an installed package offers")
    done = heed("export", model, tmp_path / "out", "--to", "names")
    assert_one_clear_line(done, "--to names: expected huggingface, ctranslate2 or marian.")


def test_two_packages_with_one_name_are_refused(trained, installed, heed, tmp_path):
    """Which of them is loaded would depend on the order of folders."""
    other = tmp_path / "packages"
    shutil.copytree(installed / "heed_gated-0.1.dist-info", other / "gated_too-2.0.dist-info")
    metadata = other / "gated_too-2.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: heed-gated", "Name: gated-too").replace("0.1", "2.0"))
    env = {"PYTHONPATH": f"{installed}:{other}"}
    both = "the packages gated-too 2.0 and heed-gated 0.1 both offer it"
    model = trained / "runs" / "small" / "model"
    assert_one_clear_line(heed("translate", model, env=env), f"GatedTransformer: {both} (entry points heed.networks)")
    for change, name in ((CHANGES[:2], "GatedTransformer"), (CHANGES[2:], "triangle")):
        done = heed("train", "small.toml", "--run", tmp_path / "run", *change, cwd=trained, env=env)
        assert_one_clear_line(done, f"{name}: {both}")
    assert not (tmp_path / "run").exists()


def test_programs_that_have_no_such_network_are_not_exported_to(trained, installed, heed, tmp_path):
    model = trained / "runs" / "small" / "model"
    for to in ("huggingface", "marian", "ctranslate2"):
        done = heed("export", model, tmp_path / "out", "--to", to, env={"PYTHONPATH": str(installed)})
        assert_one_clear_line(done, "this model has network = GatedTransformer, which ", " cannot express.")


class Doubled(Transformer):
    """Its output is twice as large as the paper's."""

    def decode_features(self, *args, **options) -> Tensor:
        return 2 * super().decode_features(*args, **options)


class Other(Transformer):
    pass


def test_a_scripts_network_is_trained_and_loaded_with_its_class(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heed.model.networks._given", {})
    recipe = package.read_recipe("small.toml", ["training.max_steps=4"])
    trained = package.train(recipe, "run", network=Doubled)
    monkeypatch.setattr("heed.model.networks._given", {})
    with pytest.raises(HeedError, match=r"its network is of the class Doubled.* heed.load\(…, network=Doubled\)"):
        package.load(trained.model)
    with pytest.raises(HeedError, match="its network is Doubled, not Other"):
        package.load(trained.model, network=Other)
    translator = package.load(trained.model, network=Doubled)
    assert translator.translate(["seven"])[0].text is not None
    model = load_model(trained.model).model
    assert type(model) is Doubled and isinstance(backend_for(model), ReferenceBackend)
    ids = torch.tensor([[5, 6]])
    state = model.start(
        model.encode(ids, torch.ones_like(ids, dtype=torch.bool)), torch.ones_like(ids, dtype=torch.bool)
    )
    plain = Transformer.decode_features(model, ids, state)
    assert torch.equal(model.output(2 * plain), model(ids, torch.ones_like(ids, dtype=torch.bool), ids))


@pytest.mark.parametrize("network", [Transformer, dict, "Doubled"])
def test_what_is_no_network_of_ones_own_is_refused(network, tmp_path):
    with pytest.raises(HeedError, match="network="):
        package.load(tmp_path, network=network)
