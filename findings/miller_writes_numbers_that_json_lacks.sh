#!/usr/bin/env bash
# Miller turns a table (.csv) into JSON Lines, and copies JSON Lines (mlr cat).
# Expected: JSON. What is no number in JSON becomes a text, and \u000b in a text stays an escape.
# Happens: a cell that Miller takes for a number is written as it stands, without quotation marks: .5, 5., 0x1F, 0b11.
# Control characters of a text come out bare. JSON allows neither, so readers refuse the file; Miller ends with status 0.
# Integers of more than 64 bits come in as numbers and go out as texts. With -S all cells are texts; nothing helps
# against bare control characters.
# Seen with Miller 6.6.0 (Debian 12: apt-get install miller), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
printf 'en,de\nhalf,.5\nfive,5.\n31,0x1F\n3,0b11\nhello,hallo\n' >pairs.csv
printf '%s\n' '{"en": "one\u000btwo"}' '{"en": "end\u0000"}' '{"en": 12345678901234567890}' >pairs.jsonl
mlr --version
mlr --icsv --ojsonl cat pairs.csv >table.jsonl
mlr -S --icsv --ojsonl cat pairs.csv >texts.jsonl
mlr -S --ijsonl --ojsonl cat pairs.jsonl >copy.jsonl
python3 - <<'EOP'
import json


def read(line):
    try:
        return json.loads(line)
    except ValueError as error:
        return f"{error.msg}: {line.strip()!r}"


found = {name: [read(line) for line in open(f"{name}.jsonl")] for name in ("table", "texts", "copy")}
print(*found.items(), sep="\n")
assert [isinstance(row, str) for row in found["table"]] == [True] * 4 + [False]
assert [row["de"] for row in found["texts"]] == [".5", "5.", "0x1F", "0b11", "hallo"]
assert [isinstance(row, str) for row in found["copy"]] == [True, True, False]
assert found["copy"][2] == {"en": "12345678901234567890"}
EOP
