#!/usr/bin/env bash
# subword-nmt apply-bpe --dropout 0.5 --seed 3, run twice on one text.
# Expected: the same segmentation; its help calls it the "Random seed for the random number generators (e.g. for BPE
# dropout with --dropout)".
# Happens: another one in each run, in silence: the command takes the option and never uses it, be the text a file or
# standard input, so a corpus segmented with dropout cannot be made again. python -m subword_nmt.apply_bpe, the other
# road to the same code, uses the seed, but not with --num-workers 2, where each process draws from a seed of its own.
# Seen with subword-nmt 0.3.8, Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv venv && venv/bin/pip install -q subword-nmt==0.3.8
for i in {1..200}; do echo "low lower lowest new newer newest wide wider widest line $i"; done > text
export PYTHONWARNINGS=ignore PYTHONHASHSEED=0
venv/bin/subword-nmt learn-bpe -s 40 < text > codes 2> /dev/null
settings=(--codes codes --dropout 0.5 --seed 3)
for run in 1 2; do
  venv/bin/subword-nmt apply-bpe "${settings[@]}" --input text --output "command.$run"
  venv/bin/subword-nmt apply-bpe "${settings[@]}" < text > "stdin.$run"
  venv/bin/python -m subword_nmt.apply_bpe "${settings[@]}" --input text --output "module.$run"
  venv/bin/python -m subword_nmt.apply_bpe "${settings[@]}" --input text --output "workers.$run" --num-workers 2
done 2> /dev/null
for road in command stdin module workers; do
  sed 's/@@ //g' "$road.1" | cmp -s - text || { echo "$road: other words"; exit 1; }
  echo "$road: $(diff "$road.1" "$road.2" | grep -c '^<' || true) of 200 lines differ between two runs with one seed"
done | tee found
[ "$(grep -c ': 0 of' found)" = 1 ] && grep -q '^module: 0 of' found
