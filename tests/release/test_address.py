"""The project's address is written wherever it belongs, and taken out again without a trace."""

import shutil
import tomllib

import pytest
from release.address import PAGES, PROJECT, fill_in, project_url, with_absolute_links

URL = "https://example.org/somebody/heed"
FILES = ("pyproject.toml", "CITATION.cff", *PAGES)


@pytest.fixture
def copy(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    fill_in(tmp_path, "")
    return tmp_path


def test_an_address_is_filled_in_everywhere_and_taken_out_again(copy):
    before = {name: (copy / name).read_text() for name in FILES}
    fill_in(copy, URL)
    filled = {name: (copy / name).read_text() for name in FILES}
    assert tomllib.loads(filled["pyproject.toml"])["project"]["urls"]["Issues"] == f"{URL}/issues"
    assert f'\nrepository-code: "{URL}"\n' in filled["CITATION.cff"]
    assert all(f"git clone {URL}\ncd heed\n" in filled[page] for page in PAGES)
    fill_in(copy, URL)
    assert filled == {name: (copy / name).read_text() for name in FILES}
    fill_in(copy, "")
    assert before == {name: (copy / name).read_text() for name in FILES}
    assert not any("git clone" in before[page] for page in PAGES)


def test_the_environment_overrides_the_setting_and_no_address_is_an_error(copy, monkeypatch):
    monkeypatch.delenv("HEED_PROJECT_URL", raising=False)
    text = (copy / "pyproject.toml").read_text()
    (copy / "pyproject.toml").write_text(text.replace('\nurl = ""\n', '\nurl = "https://example.org/from/setting/"\n'))
    assert project_url(copy) == "https://example.org/from/setting"
    monkeypatch.setenv("HEED_PROJECT_URL", URL)
    assert project_url(copy) == URL
    monkeypatch.setenv("HEED_PROJECT_URL", 'https://example.org/a"\n[tool]')
    with pytest.raises(ValueError, match="expected an address"):
        project_url(copy)


def test_links_of_a_page_lead_to_the_repository_where_it_is_shown_without_it():
    page = '[a](docs/index.md#b) [c](https://example.org) [d](#e) <img width="9" src="docs/f.png" alt="g">'
    assert with_absolute_links(page, "", "1.2") == page
    expected = page.replace("docs/index", f"{URL}/blob/v1.2/docs/index").replace("docs/f", f"{URL}/raw/v1.2/docs/f")
    assert with_absolute_links(page, URL, "1.2") == expected


def test_the_citation_and_the_changelog_are_of_this_version():
    with (PROJECT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    assert f"\nversion: {version}\n" in (PROJECT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (PROJECT / "CHANGELOG.md").read_text()
