# ./dev bench and ./dev peers: figures of this machine, in bench/results. Sourced by ./dev.

PEERS=$ROOT/.cache/peers
PEER_WHEELS=(wheel ninja 'setuptools<82' numpy)

build_benchmarks() {
  need_packages libbenchmark-dev
  set_up
  cmake -S "$ROOT" -B "$ROOT/build/$PRESET" -DZERO_BUILD_BENCHMARKS=ON >/dev/null || die "CMake could not add the benchmarks"
  build zero_tool optimizer_bench dispatch_bench collectives_bench checkpoint_bench
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
  python3 "$ROOT/bench/keep.py" "$ROOT/build/$name.json" "$ROOT/bench/results/$name.json" "./dev bench"
}

do_bench() {
  build_benchmarks
  record_benchmark optimizer "$ROOT/build/$PRESET/bench/optimizer_bench"
  say checkpoint
  "$ROOT/build/$PRESET/bench/checkpoint_bench" "$ROOT/build" >"$ROOT/build/checkpoint.jsonl" || die "checkpoint failed, see above"
  python3 "$ROOT/bench/keep.py" "$ROOT/build/checkpoint.jsonl" "$ROOT/bench/results/checkpoint.json" "./dev bench"
  record_benchmark dispatch "$ROOT/build/$PRESET/bench/dispatch_bench"
  record_benchmark collectives "$ROOT/build/$PRESET/zero" launch --ranks 2 -- "$ROOT/build/$PRESET/bench/collectives_bench"
  python3 "$ROOT/bench/steps.py" --zero "$ROOT/build/$PRESET/zero" --out "$ROOT/bench/results/ours" --said "./dev bench $*" "$@"
  python3 "$ROOT/bench/report.py" --results "$ROOT/bench/results/ours"
}

# Their Adam and their collectives beside ours.
peers_parts() {
  local build=$ROOT/build threads
  for threads in 1 2; do "$PEERS/bin/python" "$ROOT/bench/peers/adam.py" $threads; done >"$build/peers-adam.jsonl" ||
    die "DeepSpeed's Adam failed, see above"
  record_benchmark optimizer "$build/$PRESET/bench/optimizer_bench"
  python3 "$ROOT/bench/keep.py" "$build/peers-adam.jsonl" "$ROOT/bench/results/peers-adam.json" "./dev peers"
  "$PEERS/bin/python" "$ROOT/bench/peers/collectives.py" >"$build/peers-collectives.jsonl" ||
    die "PyTorch's Gloo failed, see above"
  record_benchmark collectives "$build/$PRESET/zero" launch --ranks 2 -- "$build/$PRESET/bench/collectives_bench"
  python3 "$ROOT/bench/keep.py" "$build/peers-collectives.jsonl" "$ROOT/bench/results/peers-collectives.json" "./dev peers"
}

do_peers() {
  build_benchmarks
  need_peers
  [[ " $* " == *" --more "* ]] || peers_parts
  python3 "$ROOT/bench/steps.py" --zero "$ROOT/build/$PRESET/zero" --peers "$PEERS" --said "./dev peers $*" "$@"
  python3 "$ROOT/bench/report.py" --into "$ROOT/README.md" --into "$ROOT/docs/performance.md"
}
