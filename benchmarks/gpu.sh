#!/usr/bin/env bash
# What a GPU makes of Heed, in parts of at most eight minutes: versions, the tests of the GPU's code, training, search, a
# profile of twenty steps, peak memory. Each part writes OUT/PART.json; one that is there is not measured again. Needs no
# network.
#
#   benchmarks/gpu.sh                          # all parts, into gpu-results/
#   OUT=folder benchmarks/gpu.sh train-base decode-512-4-base
#   SMALL=1 HEED_DEVICE=cpu benchmarks/gpu.sh  # tiny shapes, to try the script itself
#   PYTHON=python benchmarks/gpu.sh            # a Python that has PyTorch and what pyproject.toml asks for
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-gpu-results} PYTHON=${PYTHON:-python3} SMALL=${SMALL:-}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT"

parts=("$@")
[ $# -gt 0 ] || parts=(versions tests {train,r-drop}-{tiny,base,big} decode-{32,512}-{1,4}-{base,big} profile memory)

failed=()
for part in "${parts[@]}"; do
  target=$OUT/$part.json
  if [ -s "$target" ]; then
    echo "$part: measured before"
    continue
  fi
  preset=${part##*-} steps=(--preset base) training=() lengths=() sizes=()
  if [ -n "$SMALL" ]; then
    preset=tiny steps=(--preset tiny --vocab 500 --tokens 500 --steps 3) training=(--vocab 500 --tokens 500)
    lengths=(--vocab 500 --src-len 5 --tgt-len 5) sizes=(--vocab 500 --tokens 300 500 --presets tiny)
  fi
  IFS=- read -r _ batch beam _ <<< "$part"
  case $part in
    versions | tests | memory) command=(benchmarks/gpu_parts.py "$part" "${sizes[@]}") ;;
    train-*) command=(-m heed bench train --preset "$preset" "${training[@]}" --json) ;;
    r-drop-*) command=(-m heed bench train --preset "$preset" "${training[@]}" --consistency 3 --json) ;;
    decode-*) command=(-m heed bench decode --preset "$preset" --batch "$batch" --beam "$beam" "${lengths[@]}" --json) ;;
    profile) command=(benchmarks/profile_step.py "${steps[@]}") ;;
    *) echo "$part: unknown part; the head of $0 names them" >&2; exit 2 ;;
  esac
  echo "$part"
  if timeout 480 "$PYTHON" "${command[@]}" > "$target.part" 2> "$OUT/$part.log"; then
    mv "$target.part" "$target"
  else
    failed+=("$part")
    tail -n 3 "$OUT/$part.log" >&2
  fi
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
