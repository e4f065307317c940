#!/usr/bin/env bash
# The paper's English-German result (Table 2) in one command: downloads WMT 2014 and verifies it, trains, averages the
# last checkpoints, translates newstest2013 and newstest2014, scores both as the paper did and by sacrebleu, and writes
# OUT/record.json and OUT/row.md, the main figures. Start it again after any interruption: it resumes.
#
#   benchmarks/wmt14.sh                        # the base model, on all GPUs of this machine, in runs/wmt14-en-de-base
#   benchmarks/wmt14.sh big                    # the big model
#   GPUS=1 OUT=folder CORPORA=folder MIRROR=folder benchmarks/wmt14.sh
#   REHEARSE=2000 benchmarks/wmt14.sh          # the whole course in two minutes on a CPU: 2,000 made pairs, 40 steps
#
# Needs pip install '.[benchmarks]', 15 GB of disk (big: 65), and a network unless MIRROR has the four archives.
set -euo pipefail
cd "$(dirname "$0")/.."
SIZE=${1:-base} PYTHON=${PYTHON:-python3} REHEARSE=${REHEARSE:-} MIRROR=${MIRROR:-}
case $SIZE in
  # A checkpoint every ten minutes of the paper's eight P100s (0.4 s and 1.0 s a step): on faster machines, minutes would
  # average fewer and later steps.
  base) interval="1500 steps" ;;
  big) interval="600 steps" ;;
  *) echo "$SIZE: expected base or big" >&2; exit 2 ;;
esac
OUT=${OUT:-runs/wmt14-en-de-$SIZE${REHEARSE:+-rehearsal}}
CORPORA=${CORPORA:-corpora}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
if [ -s "$OUT/record.json" ]; then
  echo "$OUT/record.json is there already; name another OUT to begin anew." >&2
  cat "$OUT/row.md"
  exit
fi
"$PYTHON" benchmarks/wmt14.py check

settings=(--set "training.checkpoint_every=$interval")
if [ -n "$REHEARSE" ]; then
  export HEED_DEVICE=cpu XDG_CONFIG_HOME=$OUT/config
  GPUS=${GPUS:-2} MIRROR=$OUT/made CORPORA=$OUT/corpora
  "$PYTHON" benchmarks/wmt14.py make-corpus "$OUT/made" --pairs "$REHEARSE"
  [ -e "$OUT/config/heed/corpora/wmt14-made.toml" ] || "$PYTHON" -m heed data add "$OUT/made/wmt14-made.toml"
  settings=(--set data.corpus=wmt14-made)
  for change in model.n_layers=1 model.d_model=32 model.d_ff=64 model.n_heads=2 training.max_steps=40 \
    training.checkpoint_every="4 steps" training.report_every=2 training.warmup_steps=20 \
    training.batch_src_tokens=1000 training.batch_tgt_tokens=1000 training.micro_batch_tokens=500; do
    settings+=(--set "$change")
  done
fi
GPUS=${GPUS:-$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')}
if [ "$GPUS" = 0 ]; then
  echo "There is no GPU here, and a CPU would take weeks. REHEARSE=2000 tries the script itself." >&2
  exit 1
fi
corpora=(--dir "$CORPORA" ${MIRROR:+--mirror "$MIRROR"})

# What the GPUs draw, in watts, while this script lives; not every driver tells.
if command -v nvidia-smi > /dev/null; then
  while kill -0 $$ 2> /dev/null; do
    nvidia-smi --query-gpu=index,power.draw --format=csv,noheader,nounits 2> /dev/null |
      sed "s/^/$(date +%s), /" >> "$OUT/power.csv" || true
    sleep "${POWER_SECONDS:-10}"
  done &
  sampler=$!
fi

# Each stage in the background, so that a signal to this script reaches it: training then saves its state.
stage=
trap '[ -z "$stage" ] || kill -TERM "$stage" 2> /dev/null || true' INT TERM
trap '[ -z "${sampler:-}" ] || kill "$sampler" 2> /dev/null || true' EXIT
run() {
  local status=0
  "$@" &
  stage=$!
  wait "$stage" || status=$?
  while kill -0 "$stage" 2> /dev/null; do # a signal ends the wait before the stage has ended
    status=0
    wait "$stage" || status=$?
  done
  stage=
  return "$status"
}

echo "{\"time\": $(date +%s), \"processes\": $GPUS}" >> "$OUT/starts.jsonl"
if [ ! -e "$OUT/trained" ]; then
  run "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$GPUS" --max-restarts 3 -m heed train \
    "wmt14-en-de-$SIZE" --run-folder "$OUT/run" "${corpora[@]}" "${settings[@]}" 2> >(tee -ai "$OUT/train.log" >&2)
  touch "$OUT/trained"
fi

# In fp32, whose rounding hardly ever changes a translation, unlike that of bf16.
"$PYTHON" benchmarks/wmt14.py files "$OUT/run" "${corpora[@]}" > "$OUT/files.tsv"
while IFS=$'\t' read -r set src _; do
  [ -s "$OUT/$set.hyp" ] && continue
  echo "Translating $set." >&2
  run "$PYTHON" -m heed translate "$OUT/run/model" --precision fp32 < "$src" > "$OUT/$set.hyp.part"
  mv "$OUT/$set.hyp.part" "$OUT/$set.hyp"
done < "$OUT/files.tsv"
"$PYTHON" benchmarks/wmt14.py record "$OUT" ${REHEARSE:+--rehearsal}
cat "$OUT/row.md"
