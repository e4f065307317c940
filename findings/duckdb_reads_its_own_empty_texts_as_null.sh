#!/usr/bin/env bash
# A table with an empty text and a NULL, written by DuckDB as CSV and read by DuckDB, with its defaults on both sides.
# Expected: the empty text is empty again; DuckDB writes it as "" and the NULL as nothing, to tell them apart.
# Happens: both come back as NULL, since the reader takes a quoted empty field for NULL too. Counts of blank
# translations, len(), and concatenation (NULL || 'x' is NULL) differ. allow_quoted_nulls=false reads the empty text.
# Seen with duckdb 2.0.1, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q duckdb==2.0.1
venv/bin/python - <<'EOP'
import duckdb

duckdb.sql("COPY (SELECT * FROM (VALUES ('', 'a'), (NULL, 'b'), ('c', 'd')) AS pairs(en, de)) TO 'pairs.csv'")
print(open("pairs.csv").read())
found = duckdb.sql("SELECT en FROM 'pairs.csv'").fetchall()
told_apart = duckdb.sql("SELECT en FROM read_csv('pairs.csv', allow_quoted_nulls=false)").fetchall()
print(found, told_apart)
assert open("pairs.csv").read() == 'en,de\n"",a\n,b\nc,d\n'
assert found == [(None,), (None,), ("c",)] and told_apart == [("",), (None,), ("c",)]
EOP
