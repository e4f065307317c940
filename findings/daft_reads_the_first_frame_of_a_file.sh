#!/usr/bin/env bash
# A corpus as JSON Lines and as CSV, compressed in two parts that are joined (as by pzstd, pbzip2, or cat of shards), in
# gzip, zstd, bzip2 and xz, read with daft. Programs for these formats, and pandas, read such a file to its end.
# Expected: all rows, or an error about what follows the first part.
# Happens: of gzip all rows are read; of zstd, bzip2 and xz only those of the first part, without an error or a warning,
# in read_json as in read_csv, by count_rows as by collect. A corpus can so lose all but its first shard.
# Seen with daft 0.7.26, zstandard 0.25.0, pandas 3.1.1 for comparison, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q daft==0.7.26 zstandard==0.25.0 pandas==3.1.1
DAFT_PROGRESS_BAR=0 venv/bin/python - <<'EOP'
import bz2
import gzip
import lzma
from pathlib import Path

import daft
import pandas as pd
import zstandard

lines = [f'{{"en": "line {row}", "de": "Zeile {row}"}}\n' for row in range(600)]
cells = ["en,de\n"] + [f"line {row},Zeile {row}\n" for row in range(600)]
kinds = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress, "bz2": bz2.compress, "xz": lzma.compress}
found = {}
for kind, compress in kinds.items():
    for name, rows in {"a.jsonl": lines, "a.csv": cells}.items():
        parts = compress("".join(rows[:200]).encode()) + compress("".join(rows[200:]).encode())
        Path(f"{name}.{kind}").write_bytes(parts)
    table = daft.read_json(f"a.jsonl.{kind}")
    counts = [table.count_rows(), len(table.to_pydict()["de"]), len(daft.read_csv(f"a.csv.{kind}").to_pydict()["de"])]
    found[kind] = counts, len(pd.read_json(f"a.jsonl.{kind}", lines=True)), len(pd.read_csv(f"a.csv.{kind}"))
print(found)
assert found["gz"] == ([600, 600, 600], 600, 600)
assert all(found[kind] == ([200, 200, 199], 600, 600) for kind in ("zst", "bz2", "xz"))
EOP
