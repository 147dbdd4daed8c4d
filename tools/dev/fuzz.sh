# ./dev fuzz [SECONDS] [TARGET...]: libFuzzer over what reads files of others. Sourced by ./dev.

FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev)
FUZZ_TARGETS=(safetensors_header checkpoint_index tokenizer token_file config device_description)

build_fuzzers() {
  local folder=$ROOT/build/fuzz log=$ROOT/build/fuzz.log
  mkdir -p "$ROOT/build"
  # LibTorch has no part in it: nothing but the packages is needed.
  need_packages "${BUILD_PACKAGES[@]}" "${FUZZ_PACKAGES[@]}"
  { cmake -S "$ROOT/fuzz" -B "$folder" -G Ninja -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14 &&
    cmake --build "$folder" -j "$(build_jobs)"; } >"$log" 2>&1 || {
    grep -E -A 12 'error|FAILED|Error' "$log" | head -60 >&2
    die "the fuzz targets could not be built, see above and $log"
  }
}

# A finding is kept in build/fuzz/findings; a target of that name with that file as argument shows it again.
do_fuzz() {
  local seconds=${1:-60} targets target failed=0
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "fuzz takes SECONDS a target and names of targets, got: $*"
  shift $(($# > 0))
  targets=("$@")
  [ $# -gt 0 ] || targets=("${FUZZ_TARGETS[@]}")
  for target in "${targets[@]}"; do
    [[ " ${FUZZ_TARGETS[*]} " = *" $target "* ]] || die "no fuzz target '$target'; there are ${FUZZ_TARGETS[*]}"
  done
  build_fuzzers
  mkdir -p "$ROOT/build/fuzz/findings"
  for target in "${targets[@]}"; do
    local corpus=$ROOT/build/fuzz/corpus/$target log=$ROOT/build/fuzz/$target.log
    local seeds=$ROOT/fuzz/seeds/$target
    [ "$target" != config ] || seeds=$ROOT/configs
    [ "$target" != device_description ] || seeds=$ROOT/configs/devices
    mkdir -p "$corpus"
    if "$ROOT/build/fuzz/${target}_fuzz" "$corpus" "$seeds" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=1024 -malloc_limit_mb=512 -artifact_prefix="$ROOT/build/fuzz/findings/$target-" >"$log" 2>&1; then
      say "$target: $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' "$log")s, no findings"
    else
      grep -E 'ERROR|SUMMARY|Test unit written|runtime error|what\(\)' "$log" | head -10 >&2
      say "$target: a finding, see above and $log"
      failed=1
    fi
  done
  [ $failed = 0 ] || die "there are findings"
}
