#!/usr/bin/env bash
# eflomal-align on a corpus with one long line, as unsplit paragraphs and subword tokens give.
# Expected: links, if slowly; or an error that names the limit.
# Happens: a pair of which a side has 1,024 tokens or more gets a blank line of links, as if none of its words had a
# translation; exit status 0 and no word about it. A pair of 1,023 tokens is aligned. Whoever filters a corpus by the
# share of aligned words, or copies names through links, loses these pairs without knowing why.
# Seen with eflomal 2.0.0, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q eflomal==2.0.0
links() { # n: the number of links of a source line of n words
  venv/bin/python - "$1" <<'EOF'
import sys
words = "one two three four five six seven".split()
lines = [[words[(i + j) % 7] for j in range(5)] for i in range(50)]
lines[5] = [words[j % 7] for j in range(int(sys.argv[1]))]
open("src", "w").writelines(" ".join(line) + "\n" for line in lines)
open("tgt", "w").writelines(" ".join("x" + word for word in line[:20]) + "\n" for line in lines)
EOF
  rm -f forward
  venv/bin/eflomal-align -s src -t tgt -m 3 -f forward -r /dev/null --overwrite >/dev/null 2>&1
  sed -n 6p forward | wc -w
}
at_limit=$(links 1023) beyond=$(links 1024)
echo "links of a line of 1,023 words: $at_limit, of 1,024: $beyond"
[ "$at_limit" -gt 0 ] && [ "$beyond" = 0 ]
