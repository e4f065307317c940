"""Pages of the paper's results as one HTML file."""

import re
from html.parser import HTMLParser


def test_equations_are_one_file_with_tables_and_plots(heed, tmp_path):
    done = heed("paper", "equations", "--out", "page.html", cwd=tmp_path)
    assert done.returncode == 0 and "Wrote page.html\n" in done.stderr and not done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    text = (tmp_path / "page.html").read_text()
    HTMLParser().feed(text)
    assert "<h1>" in text and "<table>" in text and "Made by <code>heed paper equations --out page.html</code>" in text
    sources = re.findall(r'<img src="([^"]*)"', text)
    assert sources and all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_what_strangers_wrote_is_text(heed, tmp_path):
    from heed.apps.paper.result_page import Page, plain

    name = "<script>alert(1)</script> [x](javascript:alert(1))"
    path = Page("page", f"# Title\n\n{plain(name)} and <b>bold</b>\n", "heed paper page").write_html(
        tmp_path / "a.html"
    )
    text = path.read_text()
    assert "&lt;script&gt;" in text and "<script" not in text and "<b>" not in text and "href" not in text


def test_a_folder_or_file_that_cannot_be_written_is_named_first(heed, tmp_path):
    (tmp_path / "taken.html").mkdir()
    done = heed("paper", "table2", "--out", "taken.html", cwd=tmp_path)
    assert done.returncode == 1 and "taken.html" in done.stderr and len(done.stderr.splitlines()) == 1
