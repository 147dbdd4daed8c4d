# ./dev bench and ./dev peers: figures of this machine, in bench/results. Sourced by ./dev.

PEERS=$ROOT/.cache/peers
RESULTS=${ZERO_BENCH_RESULTS:-$ROOT/bench/results}
PEER_WHEELS=(wheel ninja 'setuptools<82' numpy)

build_benchmarks() {
  need_packages libbenchmark-dev
  set_up
  cmake -S "$ROOT" -B "$ROOT/build/$PRESET" -DZERO_BUILD_BENCHMARKS=ON >/dev/null || die "CMake could not add the benchmarks"
  build zero_tool optimizer_bench muon_bench dispatch_bench collectives_bench checkpoint_bench saving_bench gemm_bench operators_bench virtual_device_bench
}

# The peers in a virtual environment of their own: PyTorch for Python and DeepSpeed, whose kernels need g++ and ninja.
need_peers() {
  [ ! -f "$PEERS/.complete" ] || return 0
  need_space "$ROOT" 8000 "the peers"
  say "installing PyTorch and DeepSpeed into .cache/peers (about 3 GB to download)"
  rm -rf "$PEERS"
  mkdir -p "$ROOT/.cache/tmp"
  "$(find_python)" -m venv "$PEERS"
  local install=("$PEERS/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --timeout 60)
  TMPDIR=$ROOT/.cache/tmp retry "${install[@]}" "${PEER_WHEELS[@]}" >&2 &&
    TMPDIR=$ROOT/.cache/tmp retry "${install[@]}" torch==2.11.0 >&2 &&
    DS_BUILD_OPS=0 TMPDIR=$ROOT/.cache/tmp retry "${install[@]}" --no-build-isolation deepspeed==0.19.8 transformers >&2 ||
    die "pip could not install the peers; see above, then run this again"
  rm -rf "$ROOT/.cache/tmp"
  touch "$PEERS/.complete"
}

# A Google Benchmark program's figures, with the machine they belong to.
record_benchmark() {
  local name=$1
  shift
  say "$name"
  "$@" --benchmark_out="$ROOT/build/$name.json" --benchmark_out_format=json >&2 || die "$name failed, see above"
  python3 "$ROOT/bench/keep.py" "$ROOT/build/$name.json" "$RESULTS/$name.json" "./dev bench"
}

# record_lines NAME COMMAND...: lines of JSON of a program of ours, with the machine they belong to.
record_lines() {
  local name=$1
  shift
  say "$name"
  "$@" >"$ROOT/build/$name.jsonl" || die "$name failed, see above"
  python3 "$ROOT/bench/keep.py" "$ROOT/build/$name.jsonl" "$RESULTS/$name.json" "./dev bench $name"
}

USUAL_PARTS=(optimizer operators checkpoint saving dispatch virtual_device collectives flops)
BENCH_PARTS=("${USUAL_PARTS[@]}" profiles cluster)

bench_part() {
  local bench=$ROOT/build/$PRESET/bench zero=$ROOT/build/$PRESET/zero
  case "$1" in
    optimizer)
      record_benchmark optimizer "$bench/optimizer_bench"
      record_lines muon "$bench/muon_bench"
      ;;
    checkpoint) record_lines checkpoint "$bench/checkpoint_bench" "$ROOT/build" ;;
    saving) record_lines saving "$zero" launch --lead --ranks 2 -- "$bench/saving_bench" "$ROOT/build" ;;
    dispatch) record_benchmark dispatch "$bench/dispatch_bench" ;;
    virtual_device) record_benchmark virtual_device "$bench/virtual_device_bench" ;;
    operators) record_lines operators "$zero" launch --lead --ranks 2 -- "$bench/operators_bench" ;;
    collectives) record_benchmark collectives "$zero" launch --ranks 2 -- "$bench/collectives_bench" ;;
    flops)
      python3 "$ROOT/bench/flops.py" --zero "$zero" --gemm "$bench/gemm_bench" --out "$RESULTS" --said "./dev bench flops" ||
        die "the rate of matrix products could not be measured, see above"
      ;;
    cluster)
      python3 "$ROOT/bench/cluster.py" --zero "$zero" --write "$ROOT/build/clusters" || die "steps could not be predicted, see above"
      ;;
    profiles)
      need_packages linux-perf
      python3 "$ROOT/bench/profiles.py" --zero "$zero" --out "$RESULTS" --said "./dev bench profiles" || die "a step could not be sampled, see above"
      ;;
  esac
}

# What bench/steps.py will say no to, before anything is built or measured.
check_steps() {
  case " $* " in *' -h '* | *' --help '*) python3 "$ROOT/bench/steps.py" --help; exit 0 ;; esac
  python3 "$ROOT/bench/steps.py" --zero zero --check "$@" || die "nothing was measured, see above"
}

do_bench() {
  local part
  if [ $# = 1 ] && [[ $1 != -* ]]; then
    [[ " ${BENCH_PARTS[*]} " == *" $1 "* ]] || die "no part of the benchmarks: $1 (${BENCH_PARTS[*]})"
    build_benchmarks
    bench_part "$1"
    return
  fi
  check_steps "$@"
  build_benchmarks
  for part in "${USUAL_PARTS[@]}"; do bench_part "$part"; done
  python3 "$ROOT/bench/steps.py" --zero "$ROOT/build/$PRESET/zero" --out "$RESULTS/ours" --said "./dev bench $*" "$@"
  python3 "$ROOT/bench/report.py" --results "$RESULTS/ours"
}

# Their Adam and their collectives beside ours.
peers_parts() {
  local build=$ROOT/build threads
  for threads in 1 2; do "$PEERS/bin/python" "$ROOT/bench/peers/adam.py" $threads; done >"$build/peers-adam.jsonl" ||
    die "DeepSpeed's Adam failed, see above"
  record_benchmark optimizer "$build/$PRESET/bench/optimizer_bench"
  python3 "$ROOT/bench/keep.py" "$build/peers-adam.jsonl" "$RESULTS/peers-adam.json" "./dev peers"
  peers_collectives
}

# Gloo's collectives and ours in turn, three rounds: the report shows medians.
peers_collectives() {
  local build=$ROOT/build round theirs= ours=
  for round in 1 2 3; do
    say "collectives, round $round"
    "$PEERS/bin/python" "$ROOT/bench/peers/collectives.py" >"$build/peers-collectives-$round.jsonl" ||
      die "PyTorch's Gloo failed, see above"
    "$build/$PRESET/zero" launch --ranks 2 -- "$build/$PRESET/bench/collectives_bench" \
      --benchmark_out="$build/collectives-$round.json" --benchmark_out_format=json >&2 || die "collectives failed, see above"
    theirs+=${theirs:+,}$build/peers-collectives-$round.jsonl
    ours+=${ours:+,}$build/collectives-$round.json
  done
  python3 "$ROOT/bench/keep.py" "$theirs" "$RESULTS/peers-collectives.json" "./dev peers"
  python3 "$ROOT/bench/keep.py" "$ours" "$RESULTS/collectives.json" "./dev peers"
}

do_peers() {
  check_steps --peers "$PEERS" "$@"
  build_benchmarks
  need_peers
  [[ " $* " == *" --more "* ]] || peers_parts
  python3 "$ROOT/bench/steps.py" --zero "$ROOT/build/$PRESET/zero" --peers "$PEERS" --out "$RESULTS" --said "./dev peers $*" "$@"
  python3 "$ROOT/bench/report.py" --into "$ROOT/README.md" --into "$ROOT/docs/performance.md"
}
