# ./dev test: every test through ctest, closed by the line "N passed, N failed". Sourced by ./dev.

# close_tests LOG STATUS: the closing line from ctest's own summary. Anything that kept ctest from one is a failure.
close_tests() {
  local summary skipped total failed
  summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$1" 2>/dev/null | tail -1) || true
  if [ -z "$summary" ]; then
    echo "0 passed, 1 failed"
    return
  fi
  failed=$(sed -E 's/.* ([0-9]+) tests? failed.*/\1/' <<<"$summary")
  total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<<"$summary")
  skipped=$(grep -cE '\*\*\*Skipped +[0-9.]+ sec' "$1") || true
  echo "$((total - failed - skipped)) passed, $failed failed$([ "$skipped" = 0 ] || echo ", $skipped skipped")"
}

do_test() {
  [ $# -le 1 ] || die "test takes one REGEX, got: $*"
  local log status=0
  log=$(mktemp)
  trap 'close_tests "'"$log"'"; rm -f "'"$log"'"' EXIT
  need_packages clang-format-14 "${FUZZ_PACKAGES[@]}"
  set_up
  need_vocabulary
  build
  (cd "$ROOT/build/$PRESET" &&
    ctest -j "$(nproc)" --output-on-failure --no-tests=error ${1:+-R "$1"}) 2>&1 | tee "$log" || status=$?
  exit "$status"
}
