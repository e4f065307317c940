#!/usr/bin/env bash
# A table of translations with texts such as "internal: see the handbook", saved as .xlsx by pandas and by polars, both
# with XlsxWriter and their defaults, and read again with openpyxl.
# Expected: a cell for each text, as it is; whatever XlsxWriter takes for an address may become a link on top of it.
# Happens: "internal:", "external:", "mailto:" and "file://" are how XlsxWriter's write() marks the targets of links.
# Such a text becomes a link whose shown text lacks the word: the cell says " see the handbook". An address of more than
# 2,079 characters leaves an empty cell and a warning. strings_to_urls=False, or write_string(), writes what was given.
# Seen with XlsxWriter 3.3.1, pandas 3.1.1, polars 2.1.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q xlsxwriter==3.3.1 pandas==3.1.1 polars==2.1.0 openpyxl==3.1.5
venv/bin/python - <<'EOP'
import warnings

import openpyxl
import pandas as pd
import polars as pl

warnings.filterwarnings("ignore", message="Ignoring URL")
texts = {
    "https://example.org/" + "a" * 2100: None,
    "internal: see the handbook": " see the handbook",
    "external: ask the press office": " ask the press office",
    "mailto:info@example.org": "info@example.org",
    "file:///C:/notes.txt is missing": "C:\\notes.txt is missing",
    "Internal: see the handbook": "Internal: see the handbook",
}
table = {"en": list(texts)}


def read(path):
    return [row[0] for row in openpyxl.load_workbook(path).active.iter_rows(min_row=2, values_only=True)]


pd.DataFrame(table).to_excel("pandas.xlsx", index=False, engine="xlsxwriter")
pl.DataFrame(table).write_excel("polars.xlsx")
options = {"strings_to_urls": False}
pd.DataFrame(table).to_excel("kept.xlsx", index=False, engine="xlsxwriter", engine_kwargs={"options": options})
found = {name: read(f"{name}.xlsx") for name in ("pandas", "polars", "kept")}
for text, *cells in zip(texts, *found.values(), strict=True):
    print(repr(text[:40]), [cell and cell[:40] for cell in cells])
assert found["kept"] == list(texts)
assert found["pandas"] == found["polars"] == list(texts.values())
EOP
