"""The page of `heed compare` shows every number of its JSON, and texts from strangers as nothing but text."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.browser import open_browser

from heed.text.printable import printable

HOSTILE = [
    "<script>document.title='taken'</script>",
    "</bdi></dd></section><img src=x onerror=\"document.title='taken'\">",
    "<!-- <style>* { display: none }</style>",
    "{{ body }} &lt;b&gt; &amp; '\" ]]>",
    "\u202egnitirw desrever \x1b[2J \x00 \u2028",
    "<svg onload=document.title='taken'> http://example.org/a.png",
    "ein Hund läuft .",
    "",
]
ALLOWED = (
    "html meta title style section bdi code h1 h2 p span table caption thead tbody tr th td svg line text g circle "
    "rect dl dt dd".split()
)


class Page(HTMLParser):
    """The elements with their attributes, and what readers see: the text of each cell, paragraph and entry."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.feed(text)
        self.cells = [cell.strip("\n") for cell in self.cells]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in ("td", "p", "dd", "dt", "h2"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def numbers(value: Any, key: str = "") -> list[tuple[str, int | float]]:
    """Every number in a JSON value with the key that it stands under."""
    if isinstance(value, dict):
        return [pair for name, item in value.items() for pair in numbers(item, name)]
    if isinstance(value, list):
        return [pair for item in value for pair in numbers(item, key)]
    return [(key, value)] if isinstance(value, (int, float)) else []


def shown(key: str, value: float) -> str:
    """As the page writes it."""
    if isinstance(value, int):
        return f"{value:,}"
    if key.startswith("p_"):
        return f"{value:.4f}"
    return (
        f"{100 * value:.2f}" if key in ("recall", "f1") else f"{value:+.2f}" if key == "difference" else f"{value:.2f}"
    )


def test_the_page_has_every_number_and_survives_hostile_texts(heed, tmp_path):
    for name, turn in (("ref", 0), ("<b onclick=x>'a'&.txt", 1), ("b\u202e.txt", 0), ("src", 2)):
        lines = HOSTILE[turn:] + HOSTILE[:turn]
        if name.startswith("b"):
            lines = [line.replace("taken", "held") for line in lines]
        # Not by write_text: a lone "\x1b" or "\u2028" ends no line here.
        (tmp_path / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    systems = ("<b onclick=x>'a'&.txt", "b\u202e.txt")
    options = ("--ref", "ref", "--src", "src", "--html", "page.html")
    done = heed("compare", *systems, *options, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [system["name"] for system in facts["systems"]] == list(systems)
    assert (facts["n_resamples"], facts["n_trials"], facts["seed"]) == (1000, 10000, "12345")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.elements <= set(ALLOWED)
    assert not any(name.startswith("on") or name in ("href", "src", "style") for name in page.attributes)
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    written = {number for cell in page.cells for number in re.findall(r"[+-]?\d[\d,]*(?:\.\d+)?", cell)}
    unsigned = {number.lstrip("+-") for number in written}
    found = numbers(facts)
    assert len(found) > 100
    for key, value in found:
        if key in ("fewest", "most", "shortest", "longest"):
            assert any(f"{value:,}" in re.split("[–+]", cell) for cell in page.cells), (key, value)
        else:
            assert shown(key, value) in written or shown(key, value) in unsigned, (key, value)
    for signature in facts["signatures"].values():
        assert any(cell.endswith(signature) for cell in page.cells)
    row = "\n".join(page.cells)
    for system in facts["systems"][1:]:
        for s in system["scores"].values():
            interval = f"{s['mean']:.2f} ± {s['half_width']:.2f}"
            tested = f"{s['difference']:+.2f}\n{s['p_bootstrap']:.4f}\n{s['p_randomisation']:.4f}\n{s['verdict']}"
            assert f" {printable(system['name'])}\n{s['score']:.2f}\n{interval}\n{tested}\n" in row
    for line in HOSTILE:
        assert printable(line) in page.cells, line
    again = heed("compare", *systems, *options, cwd=tmp_path)  # the same page, the same numbers as text
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert "\x1b" not in again.stdout and "\u202e" not in again.stdout
    for system in facts["systems"]:
        for score in system["scores"].values():
            assert f"{score['score']:.2f}" in again.stdout
    if shutil.which("chromium"):
        _check_in_a_browser(tmp_path)


def _check_in_a_browser(folder: Path) -> None:
    with open_browser(folder / "profile") as tab:
        tab.open((folder / "page.html").as_uri())
        assert tab.value("document.title") == "Comparison of translations"
        assert tab.value("document.scripts.length + document.images.length") == 0
        assert tab.value("document.body.innerText.includes(\"<script>document.title='taken'</script>\")")
        dark, light = (
            [tab.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]),
             tab.value("getComputedStyle(document.body).backgroundColor")][1]
            for scheme in ("dark", "light")
        )  # fmt: skip
        assert dark != light
        assert tab.errors() == []
        assert [address for address in tab.addresses() if address.startswith("http")] == []


def test_mistakes_are_one_line(heed, tmp_path):
    for name, text in {"ref": "a\nb\n", "one": "a\n", "two": "a\nb\n", "empty": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "odd").write_bytes(b"gut\n\xff\n")
    (tmp_path / "folder").mkdir()
    for words, message in (
        ("--ref ref two", "two alone cannot be compared"),
        ("--ref ref two one", "one has 1 lines, ref 2: both must have the same number"),
        ("--ref ref --src one two two", "one has 1 lines, ref 2"),
        ("--ref ref two missing", "missing: cannot be read"),
        ("--ref empty empty empty", "empty is empty"),
        ("--ref ref two two --train empty", "empty is empty: there is no word to count"),
        ("--ref ref --src two folder folder --train odd", "odd, line 2: byte 1 (0xff) is not UTF-8"),
        ("--ref ref two folder", "folder is a folder: to translate with a model, give its text by --src"),
        ("--ref ref --src ref two folder", "folder: not a model folder"),
        ("--ref ref two two --html ref", "--html ref: is one of the files to read"),
        ("--ref ref two two --html folder", "folder: is a folder, not a file"),
        ("--ref ref two two --tokenize moses", "unknown tokenisation 'moses'"),
    ):
        done = heed("compare", *words.split(), cwd=tmp_path)
        assert done.returncode == 1 and not done.stdout, words
        assert done.stderr.startswith(f"heed: {message}"), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert (tmp_path / "ref").read_text() == "a\nb\n"
