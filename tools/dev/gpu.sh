#!/usr/bin/env bash
# The device tests and benchmarks on a machine with a GPU that may be bare and without network. usage() says how.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
PACK=${ZERO_GPU_PACK:-$ROOT/build/gpu}
OUT=${OUT:-$ROOT/build/gpu-results}
BUILD=$ROOT/build/cuda
TORCH_VERSION=2.11
MOST_PACK_MIB=64
RUN_S=${ZERO_GPU_RUN_S:-570}  # of one verb: machines end a command after ten minutes
DRY=no

usage() {
  cat <<'END'
usage: tools/dev/gpu.sh [--dry-run] VERB

  pack         here: puts the programs of build/cuda (./dev cuda) and the libraries they need, but for LibTorch's, into
               build/gpu, at most 64 MiB, to be carried beside the sources
  check        there: names the GPU, LibTorch and whatever is missing; fails without a GPU
  build        there, instead of pack: builds with LibTorch and the toolkit that are there, without network
  tests        the device tests; fails if one fails, and if one that a single GPU can run is skipped
  bench PART   steps of GPT-2, a line of JSON a run: ours, fsdp2 (PyTorch's loop, eager), compiled (the same under
               torch.compile) or all, one after the other

  --dry-run    print every command instead of running it

LibTorch is that of python3 (import torch), or the folder in LIBTORCH. Results go to the folder OUT (build/gpu-results). A verb
takes less than ten minutes: what does not fit is named, and is not run.
END
}

say() { printf 'gpu: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# run COMMAND...: within the time that is left to this verb.
run() {
  local left=$((RUN_S - SECONDS))
  if [ $DRY = yes ]; then printf '+ %s\n' "$(printf '%q ' "$@")"; return; fi
  [ $left -gt 20 ] || { say "no time left for: $*"; return 125; }
  timeout -k 5 "$left" "$@"
}

gpu_count() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c . || true; }

need_gpu() {
  [ $DRY = no ] || return 0
  command -v nvidia-smi >/dev/null || die "no GPU: there is no nvidia-smi here"
  [ "$(gpu_count)" -gt 0 ] || die "no GPU: nvidia-smi lists none"
}

# Sets LIBTORCH, a folder with lib/libtorch_cuda.so of the version that the programs were built with.
need_libtorch() {
  local version
  if [ -z "${LIBTORCH-}" ]; then
    LIBTORCH=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) ||
      LIBTORCH=$(echo "$ROOT"/.venv/lib/python3*/site-packages/torch)
  fi
  [ $DRY = no ] || return 0
  [ -f "$LIBTORCH/lib/libtorch_cuda.so" ] ||
    die "no LibTorch with CUDA: python3 has no torch, and LIBTORCH names no folder with lib/libtorch_cuda.so. It is too large to be carried here (0.9 GB, and 2 GB of CUDA libraries): use an image with torch $TORCH_VERSION"
  version=$(sed -n "s/^__version__ = '\([^']*\)'.*/\1/p" "$LIBTORCH/version.py" 2>/dev/null || true)
  [[ -z $version || $version == "$TORCH_VERSION".* ]] ||
    die "LibTorch in $LIBTORCH is $version, the programs are for $TORCH_VERSION: build here (tools/dev/gpu.sh build), or use an image with torch $TORCH_VERSION"
}

# Sets PROGRAMS: what was built here, else what was carried.
need_programs() {
  PROGRAMS=$PACK
  [ ! -x "$BUILD/zero" ] || [ ! -x "$BUILD/tests/cuda_test" ] || PROGRAMS=$BUILD
  [ $DRY = no ] || return 0
  [ -x "$PROGRAMS/zero" ] || die "no programs in build/cuda or $PACK: carry what tools/dev/gpu.sh pack makes, or build here (tools/dev/gpu.sh build)"
}

program() { if [ "$PROGRAMS" = "$BUILD" ] && [ "$1" != zero ]; then echo "$BUILD/tests/$1"; else echo "$PROGRAMS/$1"; fi; }

set_library_path() {
  export LD_LIBRARY_PATH=$PROGRAMS:$LIBTORCH/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export ZERO_PLUGIN_DIR=$PROGRAMS
}

do_pack() {
  local file needed mib
  for file in zero libzero_cuda.so tests/cuda_test tests/cuda_ranks_test; do
    [ $DRY = yes ] || [ -e "$BUILD/$file" ] || die "$BUILD/$file is missing: run ./dev cuda"
  done
  run rm -rf "$PACK"
  run mkdir -p "$PACK"
  run cp -L "$BUILD/zero" "$BUILD/tests/cuda_test" "$BUILD/tests/cuda_ranks_test" "$BUILD/libzero_cuda.so" "$BUILD/libzero.so.0" "$PACK/"
  # Libraries of this distribution that a bare machine lacks. LibTorch's own and the C library's are there.
  if [ $DRY = no ]; then
    needed=$(LD_LIBRARY_PATH=$BUILD ldd "$PACK/zero" "$PACK/cuda_test" "$PACK/libzero.so.0" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
      grep -vE '/(libtorch|libc10|libgomp|libcud|libcupti|libnv|libc\.|libm\.|libdl|libpthread|librt|ld-linux|libstdc|libgcc_s|libzero)' || true)
    while read -r file; do [ -z "$file" ] || cp -L "$file" "$PACK/"; done <<<"$needed"
  fi
  run find "$PACK" -type f -exec strip -g '{}' +
  [ $DRY = no ] || return 0
  mib=$(du -sm "$PACK" | cut -f1)
  [ "$mib" -le $MOST_PACK_MIB ] || die "$PACK has $mib MiB, more than the $MOST_PACK_MIB that can be carried"
  say "packed $mib MiB in $PACK; it is carried beside the sources"
}

do_check() {
  need_gpu
  need_libtorch
  need_programs
  run nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv
  set_library_path
  run "$(program zero)" --version
  [ $DRY = yes ] || say "LibTorch in $LIBTORCH, programs in $PROGRAMS, $(gpu_count) GPUs"
}

do_build() {
  local tool missing=()
  need_gpu
  need_libtorch
  for tool in cmake ninja g++ pkg-config; do command -v $tool >/dev/null || missing+=("$tool"); done
  [ $DRY = yes ] || [ ${#missing[@]} = 0 ] || die "cannot build here: missing ${missing[*]}; carry what tools/dev/gpu.sh pack makes"
  run cmake --preset cuda -S "$ROOT" -DLIBTORCH_DIR="$LIBTORCH"
  run cmake --build "$BUILD" --target zero_tool zero_cuda cuda_test cuda_ranks_test
}

# A skipped test of one device on a machine that has one would be a test that cannot fail.
check_results() {
  python3 - "$@" <<'END'
import json
import sys

bad = passed = 0
for path in sys.argv[1:]:
    needs_several = "ranks" in path
    for suite in json.load(open(path))["testsuites"]:
        for test in suite["testsuite"]:
            name = suite["name"] + "." + test["name"]
            skipped = test["result"] == "SKIPPED"
            if "failures" in test or (skipped and not needs_several):
                bad += 1
                print("not passed:", name, test["result"])
            elif skipped:
                print("skipped:", name)
            else:
                passed += 1
print(f"{passed} passed, {bad} not passed")
sys.exit(bad > 0 or passed == 0)
END
}

do_tests() {
  local test status=0
  need_gpu
  need_libtorch
  need_programs
  set_library_path
  run mkdir -p "$OUT"
  for test in cuda_test cuda_ranks_test; do
    run "$(program $test)" --gtest_output="json:$OUT/$test.json" || status=1
  done
  [ $DRY = yes ] || check_results "$OUT/cuda_test.json" "$OUT/cuda_ranks_test.json" || status=1
  return $status
}

# record NAME COMMAND...: its line of JSON, added to OUT/gpu-steps.jsonl.
record() {
  local name=$1 line
  shift
  if [ $DRY = yes ]; then run "$@"; return; fi
  say "$name"
  line=$(run "$@") || { say "failed: $name"; FAILED=1; return; }
  python3 -c 'import json, sys; print(json.dumps({"case": sys.argv[1], **json.loads(sys.argv[2])}))' "$name" "$line" >>"$OUT/gpu-steps.jsonl"
}

bench_ours() {
  local zero stage communication case=("$@")
  zero=$(program zero)
  for stage in 0 3; do
    record "zero.cpp plain stage $stage" "$zero" bench step --json --device cuda --plain --operators libtorch --stage $stage "${case[@]}"
  done
  record "zero.cpp stage 3" "$zero" bench step --json --device cuda --stage 3 "${case[@]}"
  [ "$RANKS" = 1 ] || for communication in exact fast; do
    record "zero.cpp plain stage 3, $communication" "$zero" bench step --json --device cuda --plain --operators libtorch --stage 3 \
      --communication $communication "${case[@]}"
  done
}

bench_peer() {
  local name=$1 case=("${@:2}") compiled=()
  [ "$name" = fsdp2 ] || compiled=(--compile)
  # With PyTorch's own libraries: ours are for zero alone.
  record "PyTorch forward + backward, $name" env -u LD_LIBRARY_PATH python3 "$ROOT/bench/peers/ddp.py" --mode alone --device cuda "${compiled[@]}" "${case[@]}"
  record "FSDP2 reshard, $name" env -u LD_LIBRARY_PATH python3 "$ROOT/bench/peers/fsdp2.py" --mode zero3 --device cuda "${compiled[@]}" "${case[@]}"
}

do_bench() {
  local part=${1:-} model
  case $part in ours | fsdp2 | compiled | all) ;; *) die "bench takes ours, fsdp2, compiled or all, got '$part'" ;; esac
  need_gpu
  need_libtorch
  need_programs
  set_library_path
  RANKS=$(gpu_count)
  [ $DRY = no ] || RANKS=2
  FAILED=0
  run mkdir -p "$OUT"
  for model in gpt2 gpt2-medium; do
    local case=(--model "$model" --dtype bf16 --ranks "$RANKS" --batch 8 --seq 1024 --steps 30 --warmup 10)
    if [[ $part = ours || $part = all ]]; then bench_ours "${case[@]}"; fi
    if [[ $part = fsdp2 || $part = all ]]; then bench_peer fsdp2 "${case[@]}"; fi
    if [[ $part = compiled || $part = all ]]; then bench_peer compiled "${case[@]}"; fi
  done
  [ "$FAILED" = 0 ] || die "not all were measured, see above"
  [ $DRY = yes ] || python3 "$ROOT/bench/keep.py" "$OUT/gpu-steps.jsonl" "$OUT/gpu-steps.json" "tools/dev/gpu.sh bench $part"
}

verb=
args=()
for word; do
  case $word in
    --dry-run) DRY=yes ;;
    -h | --help) usage; exit 0 ;;
    *) if [ -z "$verb" ]; then verb=$word; else args+=("$word"); fi ;;
  esac
done
case $verb in
  '') usage ;;
  pack | check | build | tests | bench) "do_$verb" "${args[@]+"${args[@]}"}" ;;
  *) usage >&2; die "unknown verb '$verb'" ;;
esac
