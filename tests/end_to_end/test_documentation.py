"""The commands of README and the guides run, in the order of their pages, on small files under the names that they use.

What makes them short: trainings take a few steps, a server ends when it is ready, and where a page says MODEL, FIRST or
RUN, one is there.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.end_to_end.test_command_line import write_corpus
from tests.parsing.corpus import write_treebank

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / name for name in ("README.md", "docs/get-started.md")]
PAGES += sorted((PROJECT / "docs" / "guides").glob("*.md"))
# Lines of commands that are not run here, by what they contain, and why.
NOT_RUN = {
    r"^make (demo|test)\b": "CI runs them",
    r"^(\. |git clone|mkdir|for set|  sed|    sed|done|python -m venv|comet/|PATH=)": "sets up, or needs the network",
    r"^(uv )?pip install": "needs the network; tests/end_to_end/test_installed.py installs a wheel",
    r"^hf download|opus-mt|models/|finetune\.toml": "tests/apps/exchange/test_guide.py runs that page's commands",
    r"^docker ": "needs Docker",
    r"^curl ": "tests/apps/serving/ sends it to a server",
    r"benchmarks/": "minutes, and other programs: tests/end_to_end/test_benchmarks.py",
    r"^#|^export|^head=|^srun|--nnodes|--run-folder /shared": "several machines: tests/end_to_end/test_torchrun.py",
    r"--nproc-per-node 8": "eight GPUs: tests/end_to_end/test_torchrun.py does it on a CPU",
    r"s3://": "tests/apps/cluster/test_stores.py translates between a store's objects",
    r"^ray |ray start|--cluster auto": "needs a cluster: tests/apps/cluster/test_ray.py starts one",
    r"parsing\.treebank=/path": "needs the WSJ",
    r"^heed train parsing-gum": "needs GUM",
}
SHORT = {
    "training.max_steps": 6,
    "training.checkpoint_every": "'1 steps'",
    "training.keep_checkpoints": 6,
    "training.average_last": 2,
    "tokenizer.vocab_size": 600,
    "model.n_encoder_layers": 3,
    "model.n_decoder_layers": 3,
    "model.d_model": 32,
    "model.d_ff": 32,
    "model.n_heads": 2,
    "decoding.max_extra_tokens": 5,
}
# A server that ends as soon as it is ready.
SERVED = (
    r"heed serve \1 --port 0 &> served.log & server=$!; "
    r"until curl -sf $(grep -o 'http://.*[0-9]' served.log)/ready; "
    r"do kill -0 $server || { cat served.log >&2; exit 1; }; sleep 0.2; done; "
    r"kill -TERM $server; wait $server"
)


def lines_of(page: Path) -> list[str]:
    """The commands on a page, continued lines joined. Where a block has prompts, the rest of it is what they print."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        lines = [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += prompted or lines
    return found


def commands(page: Path) -> list[str]:
    """Those that are run."""
    return [line for line in lines_of(page) if not any(re.search(pattern, line) for pattern in NOT_RUN)]


def shortened(line: str) -> str:
    """The command as it is run here."""
    line = re.sub("[\t ]+#.*", "", line)
    if re.search("heed (train|prepare|back-translate)", line):
        line += "".join(f" --set {name}={value}" for name, value in SHORT.items()) + " --mirror mirror"
    if "heed back-translate" in line:  # a search of a model of six steps never ends
        line += " --sample 1 --max-extra-tokens 2000"
    line = re.sub(r"heed serve (\S+).*", SERVED, line)
    return re.sub(r"\bRUN\b", "runs/parser", re.sub(r"\b(MODEL|FIRST|SECOND|THIRD)\b", "runs/my/model", line))


def write_recipe(folder: Path) -> None:
    """The user's own, which one page replaces by another."""
    shutil.copy(folder / "small.toml", folder / "my.toml")


@pytest.fixture(scope="module")
def place(tmp_path_factory, data_folder) -> Path:
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("documentation")
    write_corpus(folder)
    (folder / "mirror").symlink_to(data_folder / "multi30k")
    english, german = ((folder / f"dev.{code}").read_text() for code in ("en", "de"))
    for name in ("text", "test", "val", "news", "corpus"):
        (folder / f"{name}.en").write_text(english)
        (folder / f"{name}.de").write_text(german)
    for name in ("first.de", "second.de", "old.de", "new.de", "translations.de"):
        (folder / name).write_text(german)
    (folder / "begun.de").write_text("".join(f"{line.split()[0]}\n" for line in german.splitlines()))
    (folder / "debates").mkdir()  # a corpus to be added
    for name in ("train", "dev", "news"):
        (folder / "debates" / f"{name}.en").write_text(english)
        (folder / "debates" / f"{name}.de").write_text(german)
    (block,) = re.findall(r"(?s)```toml\n(# proceedings\.toml.*?)```", (PROJECT / "docs/guides/train.md").read_text())
    (folder / "proceedings.toml").write_text(block)
    (folder / "news").mkdir()  # text of one language alone
    with gzip.open(folder / "news" / "crawl.de.gz", "wt", encoding="utf-8") as file:
        file.write(german)
    (folder / "page.html").write_text("<p>seven <b>hundred</b></p>\n")
    write_recipe(folder)
    write_treebank(folder / "treebank")
    sentences = "the dog sees the cat .\n"
    (folder / "sentences.txt").write_text(sentences)
    tree = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT the) (NN cat))) (. .)))\n"
    (folder / "gold.trees").write_text(tree)
    for run in ("parser", "parsing-wsj", "first-parser"):
        shutil.copytree(PROJECT / "tests" / "golden" / "parser", folder / "runs" / run / "model")
    (folder / "runs" / "parser" / "lines").mkdir()
    (folder / "runs" / "parser" / "lines" / "dev.trees").write_text(tree)
    docx = pytest.importorskip("docx")
    letter = docx.Document()
    letter.add_paragraph("seven hundred")
    letter.save(str(folder / "letter.docx"))
    assert run_in(folder, "heed demo").returncode == 0  # in full: nothing shortens it
    for run in ("old", "new", "my"):
        assert run_in(folder, f"heed train my.toml --run runs/{run}").returncode == 0
    assert run_in(folder, "heed train multi30k-en-de").returncode == 0
    translated = run_in(folder, "heed translate MODEL --json < text.en")
    tokens = [json.loads(line)["translations"][0]["tokens"] for line in translated.stdout.splitlines()]
    (folder / "tokens.de").write_text("".join(f"{' '.join(line)}\n" for line in tokens), encoding="utf-8")
    return folder


def run_in(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-e", "-o", "pipefail", "-c", shortened(line)]
    env = os.environ | {"PATH": path, "XDG_CONFIG_HOME": str(folder / "config")}  # where added corpora are kept
    if "--workers" in line:  # which share the threads
        env.pop("OMP_NUM_THREADS", None)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_runs(page, place):
    write_recipe(place)
    for line in commands(page):
        done = run_in(place, line)
        assert done.returncode == 0, f"{line}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, line


def test_what_is_not_run_is_still_there():
    lines = [line for page in PAGES for line in lines_of(page)]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in lines), pattern
    assert sum(len(commands(page)) for page in PAGES) > 50
