#!/usr/bin/env bash
# What a GPU makes of Heed, without a network: first whether results are right, then how fast it trains and searches,
# where the time goes, and what CTranslate2 and a plain PyTorch loop do on the same card. What matters most comes first.
# Each part takes at most a quarter of the time and writes OUT/PART.json; one that is there is not measured again.
# OUT/results.json has all of them, OUT/results.md the same as a table, and OUT/PART.log what was said.
#
#   benchmarks/gpu.sh                 # all parts, into gpu-results/, in half an hour
#   MINUTES=9 benchmarks/gpu.sh       # what ten minutes hold; the same command again measures more
#   OUT=folder benchmarks/gpu.sh train-base decode-512-4-base
#   SMALL=1 benchmarks/gpu.sh         # tiny shapes on a CPU, to try the script itself
#   PYTHON=python benchmarks/gpu.sh   # a Python that has PyTorch and what pyproject.toml asks for
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-gpu-results} PYTHON=${PYTHON:-python3} SMALL=${SMALL:-} MINUTES=${MINUTES:-30}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
[ -z "$SMALL" ] || export HEED_DEVICE=${HEED_DEVICE:-cpu}
mkdir -p "$OUT"

parts=("$@")
[ $# -gt 0 ] || parts=(
  versions check-adam-losses-search check-training train-base decode-512-4-base profile-base train-big
  check-ceilings-relu-varlen train-tiny decode-512-1-base losses ctranslate2-512-4-base plain-512-4-base torch-base
  {uncompiled,plain,r-drop}-base tests
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
  switches=() programs=()
  [ "$device" != cpu ] || programs=(--only heed-fp32-1x2 ct2-fp32-1x2)
  IFS=- read -r _ batch beam _ <<< "$part"
  case $part in
    versions | tests | losses) command=(benchmarks/gpu_parts.py "$part") ;;
    memory) command=(benchmarks/gpu_parts.py memory "${sizes[@]}") ;;
    check-*)
      IFS=- read -ra checks <<< "$part"
      command=(benchmarks/gpu_checks.py "${checks[@]:1}" ${SMALL:+--small})
      ;;
    plain-*) switches=(HEED_KERNELS=0) ;;& # the plain network, to compare with
    uncompiled-*) switches=(HEED_COMPILE=0) ;;&
    train-* | plain-[a-z]* | uncompiled-*) command=(-m heed bench train --preset "$preset" "${shape[@]}" --json) ;;
    r-drop-*) command=(-m heed bench train --preset "$preset" "${shape[@]}" --consistency 3 --json) ;;
    decode-* | plain-[0-9]*) command=(-m heed bench decode --preset "$preset" --batch "$batch" --beam "$beam" "${lengths[@]}" --json) ;;
    ctranslate2-*)
      command=(
        benchmarks/decode_peers.py --preset "$preset" --batch "$batch" --beam "$beam" "${forced[@]}" --device "$device"
        "${programs[@]}" --json
      )
      ;;
    torch-*) command=(benchmarks/gpu_parts.py torch --presets "$preset" "${shape[@]}") ;;
    profile-*)
      command=(benchmarks/profile_step.py --preset "$preset" "${shape[@]}" --steps $((SMALL ? 3 : 20)))
      command+=(--trace "$OUT/trace-$preset.json.gz")
      ;;
    *) echo "$part: unknown part; the head of $0 names them" >&2; exit 2 ;;
  esac
  echo "$part"
  most=$((seconds < MINUTES * 15 ? seconds : MINUTES * 15))
  # In a process group of its own, all of which ends with it: compilers, too.
  if timeout -k 5 "$most" env "${switches[@]}" "$PYTHON" "${command[@]}" > "$target.part" 2> "$OUT/$part.log" < /dev/null; then
    mv "$target.part" "$target"
  else
    failed+=("$part")
    tail -n 3 "$OUT/$part.log" >&2
  fi
done
"$PYTHON" benchmarks/gpu_parts.py summary "$OUT"
[ ${#left_out[@]} = 0 ] || echo "left out, for want of time: ${left_out[*]}" >&2
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
