"""No verb overwrites or deletes what Heed did not make: it is named in one line before any work, and stays."""

import os
import shutil
import time
from pathlib import Path

import pytest
from tests.end_to_end.test_command_line import assert_one_clear_line, write_corpus

from heed.apps.paper.index import write_all
from heed.apps.paper.result_page import Page, check_pages
from heed.errors import HeedError
from heed.runs.average import average_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, heed) -> Path:
    """A folder with a corpus, its recipe and a run."""
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder)
    done = heed("train", "small.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def work(trained, tmp_path) -> Path:
    """A copy, to attack."""
    folder = tmp_path / "work"
    shutil.copytree(trained, folder)
    return folder


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """All that lies in a folder: content of files, targets of links, None for folders and FIFOs."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine\n")


RUN = "runs/small"


@pytest.mark.parametrize(
    ("out", "part"),
    [
        ("home", "holds .bashrc,"),
        ("home/notes.txt", "Not a directory"),
        ("home/notes.txt/x", "cannot be made"),
        ("link", "holds .bashrc,"),
        (".", "holds dev.de,"),
        ("/", "/: would be replaced"),
        (RUN, "holds .lock,"),
        (f"{RUN}/checkpoints", "which training writes to"),
    ],
)
def test_average_deletes_no_folder_of_others_nor_the_runs_own(work, monkeypatch, out, part):
    write_files(work / "home", ".bashrc", "notes.txt", "thesis/chapter1.tex")
    (work / "link").symlink_to("home")
    monkeypatch.chdir(work)
    before = contents(work)
    with pytest.raises(HeedError) as error:
        average_run(Path(RUN), last=2, report=pytest.fail, out=Path(out))  # it says nothing before
    assert part in str(error.value) and "\n" not in str(error.value)
    assert contents(work) == before


def test_average_replaces_a_model_or_an_empty_folder(work):
    (work / "empty").mkdir()
    (work / "link").symlink_to("empty")
    for out in ("new/folder", "new/folder", "empty", "link", f"{RUN}/other"):
        average_run(work / RUN, last=1, report=str, out=work / out)
    models = [(work / out / "model.safetensors").read_bytes() for out in ("new/folder", "empty", f"{RUN}/other")]
    assert len(set(models)) == 1
    assert (work / "link").is_symlink()


@pytest.mark.parametrize(("verb", "name"), [("train", "config.toml"), ("demo", "model/x")])
def test_no_command_trains_in_a_folder_of_others(trained, tmp_path, heed, verb, name):
    write_files(tmp_path / "project", name, "README.md", ".lock")
    before = contents(tmp_path)
    recipe = [trained / "small.toml"] if verb == "train" else []
    done = heed(verb, *recipe, "--run", tmp_path / "project")
    assert_one_clear_line(done, str(tmp_path / "project"), name.split("/")[0], "choose another --run")
    assert contents(tmp_path) == before


def test_a_lock_of_others_stays(trained, tmp_path, heed):
    write_files(tmp_path, "authorized_keys", "project/.lock")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to("../authorized_keys")
    before = contents(tmp_path)
    for run, part in (("run", "is a symbolic link"), ("project", "not a lock")):
        assert_one_clear_line(heed("train", trained / "small.toml", "--run", tmp_path / run), run, ".lock", part)
    assert contents(tmp_path) == before


def test_a_log_that_is_a_link_stops_the_run_and_the_target_stays(work, heed):
    write_files(work, "target")
    log = work / RUN / "metrics.jsonl"
    log.unlink()
    log.symlink_to("../../target")
    done = heed("train", RUN, "--set", "training.max_steps=48", cwd=work)
    assert_one_clear_line(done, "metrics.jsonl", "is a symbolic link")
    assert (work / "target").read_text() == "mine\n"
    log.unlink()
    assert heed("train", RUN, "--set", "training.max_steps=48", cwd=work).returncode == 0


@pytest.mark.soak
def test_a_demo_that_is_killed_at_its_start_goes_on(tmp_path, commands):
    run = tmp_path / "run"
    for there in (".lock", "corpus/train.en", "metrics.jsonl"):
        process = commands.server(os.environ).start(["demo", "--run", str(run)], cwd=tmp_path, environment=os.environ)
        deadline = time.monotonic() + 300
        while not (run / there).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        _, told = process.communicate()
        assert (run / there).exists(), told


def test_a_folder_of_others_is_no_folder_of_table_3(trained, tmp_path, heed):
    command = ["paper", "table3", "--run", "--recipe", trained / "small.toml", "--rows", "table3-A-h1"]
    for name in ("recipe.toml", "data/x"):
        project = tmp_path / name.split(".")[0].split("/")[0]
        write_files(project, name, "README.md")
        before = contents(tmp_path)
        assert_one_clear_line(heed(*command, "--folder", project), str(project))
        assert contents(tmp_path) == before


def page() -> Page:
    return Page(
        "page", "# A page\n", "heed paper page", {"page-1.svg": lambda figure: figure.add_subplot().plot([1, 2])}
    )


@pytest.mark.parametrize("name", ["page.md", "page-1.svg"])
def test_a_page_replaces_only_pages(tmp_path, name):
    pytest.importorskip("matplotlib")
    write_files(tmp_path, name)
    with pytest.raises(HeedError, match=f"{name}: not made by `heed paper`"):
        page().write(tmp_path)
    assert contents(tmp_path) == {name: b"mine\n"}
    (tmp_path / name).unlink()
    page().write(tmp_path)
    first = contents(tmp_path)
    (tmp_path / "page-1.svg").unlink()  # as if killed between page and plot
    page().write(tmp_path)
    page().write(tmp_path)
    assert contents(tmp_path) == first
    write_files(tmp_path, name)
    with pytest.raises(HeedError, match=f"{name}: not made by `heed paper`"):
        page().write(tmp_path)
    assert (tmp_path / name).read_text() == "mine\n"


def test_an_index_never_replaces_a_projects_readme(tmp_path):
    write_files(tmp_path, "README.md")
    layers = Page("table1", "text\n", "heed paper table1")
    with pytest.raises(HeedError, match=r"README\.md: not made by `heed paper`"):
        write_all(
            tmp_path, layers=layers, model=None, src=None, lower=False, vocab_size=100, runs=tmp_path, report=print
        )
    assert contents(tmp_path) == {"README.md": b"mine\n"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Made by `heed paper all`.",
        "# Mine\n\nMade by `heed paper all --out .`.\n\nAnd more.\n",
        "# Mine\n\nSee: Made by `heed paper all --out .`.\n",
    ],
)
def test_a_page_that_only_quotes_the_last_line_is_not_heeds(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(HeedError):
        check_pages(tmp_path, ["README"])
    (tmp_path / "README.md").write_text("# Heed's\n\nMade by `heed paper all --out .`.\n")
    check_pages(tmp_path, ["README"])


def test_the_pages_of_this_project_can_be_written_again():
    folder = Path(__file__).resolve().parents[2] / "docs" / "paper"
    check_pages(folder, [path.stem for path in folder.glob("*.md")])


def test_a_picture_replaces_a_picture_and_no_folder_or_fifo(work, heed):
    (work / "folder.html").mkdir()
    os.mkfifo(work / "fifo.html")
    (work / "old.html").write_text("old")
    command = ["attention", f"{RUN}/model", "one", "--out"]
    assert_one_clear_line(heed(*command, "folder.html", cwd=work), "folder.html: is a folder, not a file")
    assert_one_clear_line(heed(*command, "fifo.html", cwd=work), "fifo.html: is a FIFO, not a file")
    done = heed(*command, "old.html", cwd=work)
    assert done.returncode == 0, done.stderr
    assert "<html" in (work / "old.html").read_text(encoding="utf-8")
