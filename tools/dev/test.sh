# ./dev test: every test through ctest, closed by the line "N passed, N failed"; ./dev soak. Sourced by ./dev.

# Sums up what the programs that run their tests in one process wrote: TESTS FAILED SKIPPED PROGRAMS FAILED_PROGRAMS.
# A program that died wrote nothing: ctest counts it as one failed test.
count_together() {
  local file line tests failed skipped all=(0 0 0 0 0)
  for file in "$1"/*.xml; do
    [ -f "$file" ] || continue
    line=$(grep -m 1 '<testsuites ' "$file") || continue
    tests=$(sed -E 's/.* tests="([0-9]+)".*/\1/' <<<"$line")
    failed=$(sed -E 's/.* failures="([0-9]+)".*/\1/' <<<"$line")
    skipped=$(grep -c 'result="skipped"' "$file") || true
    all=($((all[0] + tests)) $((all[1] + failed)) $((all[2] + skipped)) $((all[3] + 1)) $((all[4] + (failed > 0))))
  done
  echo "${all[@]}"
}

# close_tests LOG [RESULTS]: the closing line from ctest's own summary, where programs of several tests count as those.
# Anything that kept ctest from a summary is a failure.
close_tests() {
  local summary skipped total failed together=(0 0 0 0 0)
  summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$1" 2>/dev/null | tail -1) || true
  if [ -z "$summary" ]; then
    echo "0 passed, 1 failed"
    return
  fi
  failed=$(sed -E 's/.* ([0-9]+) tests? failed.*/\1/' <<<"$summary")
  total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$summary")
  skipped=$(grep -cE '\*\*\*Skipped +[0-9.]+ sec' "$1") || true
  [ -z "${2-}" ] || read -ra together < <(count_together "$2")
  total=$((total + together[0] - together[3]))
  failed=$((failed + together[1] - together[4]))
  skipped=$((skipped + together[2]))
  echo "$((total - failed - skipped)) passed, $failed failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
}

do_test() {
  [ $# -le 1 ] || die "test takes one REGEX, got: $*"
  local log status=0 results=$ROOT/build/$PRESET/test-results
  log=$(mktemp)
  trap 'close_tests "'"$log"'" "'"$results"'"; rm -f "'"$log"'"' EXIT
  rm -rf "$results"
  need_packages clang-format-14
  set_up
  need_vocabulary
  build
  # All of them: those that start no ranks in one process a program. Some of them: each by itself.
  local which=(-C together -LE single)
  [ $# = 0 ] || which=(-R "$1")
  (cd "$ROOT/build/$PRESET" &&
    ctest -j "$(nproc)" --output-on-failure --no-tests=error "${which[@]}") 2>&1 | tee "$log" || status=$?
  exit "$status"
}

# What is drawn at random, many times over, and the fuzz targets.
do_soak() {
  [ $# = 0 ] || die "soak takes no arguments, got: $*"
  need_packages "${FUZZ_PACKAGES[@]}"
  set_up
  need_vocabulary
  build
  (cd "$ROOT/build/$PRESET" &&
    ZERO_SOAK=1 ctest -C soak --output-on-failure --no-tests=error --timeout 7200 -R '^fuzz$|AtAnyMoment|Property|Random|Trial') ||
    die "there are failures, see above"
}
