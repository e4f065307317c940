#!/usr/bin/env bash
# DuckDB's read_csv on a file of sentence pairs without a head.
# Expected: as many rows as lines, since every column is text and no line looks like names of columns.
# Happens: the first pair becomes the columns' names. In a small text with commas, lines that have fewer commas than the
# others are skipped in silence, too. A quotation mark that opens one line and closes a later one joins all lines
# between them into one field, without a warning. `header = false, quote = '', delim = '\t'` reads every line.
# Seen with duckdb 2.0.1, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q duckdb==2.0.1
venv/bin/python - <<'EOF'
import duckdb

def rows(name, options=""):
    return duckdb.sql(f"select * from read_csv('{name}'{options})").fetchall()

pairs = [f"line {i} of the text\tZeile {i} des Textes" for i in range(2000)]
open("pairs.tsv", "w").write("\n".join(pairs) + "\n")
plain = len(rows("pairs.tsv"))
open("commas.txt", "w").write("Hello, world.\nHow are you?\nI, for one, agree; yes.\n")
commas = len(rows("commas.txt"))
pairs[700], pairs[900] = '"To be\t»Sein', 'or not"\toder nicht«'
open("quotes.tsv", "w").write("\n".join(pairs) + "\n")
quotes = len(rows("quotes.tsv"))
asked = len(rows("quotes.tsv", ", header = false, quote = '', delim = '\t'"))
print(f"2,000 pairs: {plain} rows; 3 lines with commas: {commas}; with two quotation marks: {quotes}; asked for: {asked}")
assert (plain, commas, quotes, asked) == (1999, 0, 1799, 2000)
EOF
