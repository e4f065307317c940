#!/usr/bin/env bash
# A spreadsheet in OpenDocument (.ods), written with odfpy, whose teletype makes elements of a text's tabs and line
# breaks, and with a Japanese word that has its reading above it (text:ruby), read by pandas, python-calamine (which
# polars reads with) and pyexcel-ods3.
# Expected: the text that was written: a tab, a line break, or at least a blank between the words; the word with or
# without its reading.
# Happens: calamine has nothing for tabs and line breaks, and pandas, which is built on odfpy, nothing for tabs: two
# words are one, without a warning. pyexcel-ods3 leaves the word out that has a reading; the others add the reading to
# it, without brackets.
# Seen with odfpy 1.4.1, pandas 3.1.1, python-calamine 0.9.1, pyexcel-ods3 0.6.1, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv
venv/bin/pip install -q odfpy==1.4.1 pandas==3.1.1 python-calamine==0.9.1 pyexcel-ods3==0.6.1
venv/bin/python - <<'EOP'
import pandas as pd
from odf import table, teletype, text
from odf.opendocument import OpenDocumentSpreadsheet
from pyexcel_ods3 import get_data
from python_calamine import CalamineWorkbook

document = OpenDocumentSpreadsheet()
rows = table.Table(name="pairs")
document.spreadsheet.addElement(rows)


def add(*parts):
    row, cell, paragraph = table.TableRow(), table.TableCell(valuetype="string"), text.P()
    for part in parts:
        if isinstance(part, str):
            teletype.addTextToElement(paragraph, part)
        else:
            paragraph.addElement(part)
    cell.addElement(paragraph)
    row.addElement(cell)
    rows.addElement(row)


add("name\tvalue")
add("first line\nsecond line")
ruby = text.Ruby()
ruby.addElement(text.RubyBase(text="漢字"))
ruby.addElement(text.RubyText(text="かんじ"))
add(ruby, "を読む")
document.save("pairs.ods")
found = {
    "pandas": pd.read_excel("pairs.ods", engine="odf", header=None)[0].tolist(),
    "calamine": [row[0] for row in CalamineWorkbook.from_path("pairs.ods").get_sheet_by_index(0).to_python()],
    "pyexcel-ods3": [row[0] for row in get_data("pairs.ods")["pairs"]],
}
print(found)
assert found["pandas"] == ["namevalue", "first line\nsecond line", "漢字かんじを読む"]
assert found["calamine"] == ["namevalue", "first linesecond line", "漢字かんじを読む"]
assert found["pyexcel-ods3"] == ["name\tvalue", "first line\nsecond line", "を読む"]
EOP
