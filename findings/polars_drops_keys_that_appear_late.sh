#!/usr/bin/env bash
# polars.read_ndjson and scan_ndjson on JSON Lines whose later rows have a key that the first hundred lack.
# Expected: a column that is null in the first rows, as the same reader makes of a key that is missing in between; or an
# error.
# Happens: the columns are those of the first 100 rows. A key that appears in row 101 (a score, a flag that marks rows to
# leave out) is dropped without a warning. infer_schema_length=None reads all of it.
# Seen with polars 2.1.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q polars==2.1.0
venv/bin/python - <<'EOF'
import json
import polars as pl

def columns(n_before):
    rows = [{"en": f"a{i}", "de": f"b{i}"} for i in range(n_before)] + [{"en": "c", "de": "d", "leave_out": True}]
    open("pairs.jsonl", "w").write("".join(json.dumps(row) + "\n" for row in rows))
    return pl.read_ndjson("pairs.jsonl").columns, pl.scan_ndjson("pairs.jsonl").collect().columns

early, late = columns(99), columns(100)
everything = pl.read_ndjson("pairs.jsonl", infer_schema_length=None).columns
print("key in row 100:", early, "in row 101:", late, "all rows looked at:", everything)
assert early == (["en", "de", "leave_out"],) * 2 and late == (["en", "de"],) * 2
assert everything == ["en", "de", "leave_out"]
EOF
