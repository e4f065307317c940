#!/usr/bin/env bash
# What a GPU makes of Heed, in half an hour and without a network: versions, whether its losses and tests are right,
# training and search of all presets, CTranslate2 and a plain PyTorch loop on the same card, a profile, peak memory.
# Each part takes at most a quarter of the time and writes OUT/PART.json; one that is there is not measured again.
# OUT/results.json has all of them, and OUT/results.md the same as a table.
#
#   benchmarks/gpu.sh                          # all parts, into gpu-results/
#   OUT=folder benchmarks/gpu.sh train-base decode-512-4-base
#   MINUTES=60 benchmarks/gpu.sh               # parts that half an hour leaves out, the last ones first, take it
#   SMALL=1 HEED_DEVICE=cpu benchmarks/gpu.sh  # tiny shapes, to try the script itself
#   PYTHON=python benchmarks/gpu.sh            # a Python that has PyTorch and what pyproject.toml asks for
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-gpu-results} PYTHON=${PYTHON:-python3} SMALL=${SMALL:-} MINUTES=${MINUTES:-30}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT"

parts=("$@")
# What matters most comes first.
[ $# -gt 0 ] || parts=(
  versions losses train-base decode-512-4-base ctranslate2-512-4-base plain-512-4-base torch-base
  train-{big,tiny} r-drop-base decode-512-1-base profile-base tests
  torch-{big,tiny} ctranslate2-512-{1-base,4-big} decode-512-{1,4}-{tiny,big} decode-32-4-base r-drop-{tiny,big}
  profile-{tiny,big} decode-32-{1-base,1-big,4-big} memory
)

failed=() left_out=()
for part in "${parts[@]}"; do
  target=$OUT/$part.json
  if [ -s "$target" ]; then
    echo "$part: measured before"
    continue
  fi
  seconds=$((MINUTES * 60 - SECONDS))
  if [ "$seconds" -lt 30 ]; then
    left_out+=("$part")
    continue
  fi
  preset=${part##*-} shape=() lengths=() sizes=() forced=(--sentences 2048) device=${HEED_DEVICE:-cuda}
  if [ -n "$SMALL" ]; then
    preset=tiny shape=(--vocab 500 --tokens 500) lengths=(--vocab 500 --src-len 5 --tgt-len 5)
    sizes=(--vocab 500 --tokens 300 500 --presets tiny) forced=(--vocab 500 --forced 5 --sentences 16)
  fi
  kernels=${HEED_KERNELS:-} programs=()
  [ "$device" != cpu ] || programs=(--only heed-fp32-1x2 ct2-fp32-1x2)
  IFS=- read -r _ batch beam _ <<< "$part"
  case $part in
    versions | tests | losses) command=(benchmarks/gpu_parts.py "$part") ;;
    memory) command=(benchmarks/gpu_parts.py memory "${sizes[@]}") ;;
    train-*) command=(-m heed bench train --preset "$preset" "${shape[@]}" --json) ;;
    r-drop-*) command=(-m heed bench train --preset "$preset" "${shape[@]}" --consistency 3 --json) ;;
    decode-* | plain-*) command=(-m heed bench decode --preset "$preset" --batch "$batch" --beam "$beam" "${lengths[@]}" --json) ;;
    ctranslate2-*)
      command=(
        benchmarks/decode_peers.py --preset "$preset" --batch "$batch" --beam "$beam" "${forced[@]}" --device "$device"
        "${programs[@]}" --json
      )
      ;;
    torch-*) command=(benchmarks/gpu_parts.py torch --presets "$preset" "${shape[@]}") ;;
    profile-*) command=(benchmarks/profile_step.py --preset "$preset" "${shape[@]}" ${SMALL:+--steps 3}) ;;
    *) echo "$part: unknown part; the head of $0 names them" >&2; exit 2 ;;
  esac
  echo "$part"
  [[ $part != plain-* ]] || kernels=0  # the plain network's search, to compare with
  if HEED_KERNELS=$kernels timeout $((seconds < MINUTES * 15 ? seconds : MINUTES * 15)) "$PYTHON" "${command[@]}" > "$target.part" 2> "$OUT/$part.log"; then
    mv "$target.part" "$target"
  else
    failed+=("$part")
    tail -n 3 "$OUT/$part.log" >&2
  fi
done
"$PYTHON" benchmarks/gpu_parts.py summary "$OUT"
[ ${#left_out[@]} = 0 ] || echo "left out, for want of time: ${left_out[*]}" >&2
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
