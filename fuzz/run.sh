#!/bin/bash
# Fuzzes the JPEG decoder and each format's reader for so many seconds: fuzz/run.sh [SECONDS] [jpeg|FORMAT...]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
fixtures=crates/feedline/tests/fixtures
formats=(tar:plain.tar tar:packed.tar.gz tfrecord:examples.tfrecord lmdb:samples.lmdb hdf5:earliest.h5 \
    hdf5:latest.h5 npy:rows.npy npy:stored.npz parquet:plain.parquet parquet:packed.parquet \
    arrow:plain.arrow arrow:packed.feather csv:table.csv jsonl:table.jsonl zarr:v3.zarr mds:mds litdata:litdata raw:raw
    zip:images.zip)
# The instrumentation is no stable option of the compiler; this lets any toolchain have it.
export RUSTC_BOOTSTRAP=1
if [ $# -eq 0 ] || [[ " $* " == *" jpeg "* ]]; then
    echo "== jpeg for $seconds s"
    mkdir -p fuzz/corpus/jpeg
    cargo fuzz run --sanitizer none jpeg fuzz/corpus/jpeg -- -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=1024 -max_len=16384 -print_final_stats=1 2>&1 | tail -8
    [ "$*" = jpeg ] && exit 0
fi
cargo fuzz build --sanitizer none sources
for pair in "${formats[@]}"; do
    format=${pair%%:*} name=${pair#*:}
    if [ $# -gt 0 ] && ! [[ " $* " == *" $format "* ]]; then continue; fi
    corpus=fuzz/corpus/$name
    mkdir -p "$corpus"
    if [ -f "$fixtures/$name" ]; then
        cp "$fixtures/$name" "$corpus/"
    else
        number=0
        find "$fixtures/$name" -type f | LC_ALL=C sort | while read -r file; do
            { printf "\\x$(printf %x $number)"; cat "$file"; } > "$corpus/$number"
            number=$((number + 1))
        done
    fi
    echo "== $name for $seconds s"
    FEEDLINE_FUZZ=$format FEEDLINE_FIXTURE=$PWD/$fixtures/$name cargo fuzz run --sanitizer none sources \
        "$corpus" -- -max_total_time="$seconds" -timeout=1 -rss_limit_mb=1024 -malloc_limit_mb=256 \
        -max_len=65536 -print_final_stats=1 2>&1 | tail -8
done
rm -rf /dev/shm/feedline-fuzz-*
