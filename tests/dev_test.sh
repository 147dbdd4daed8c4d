#!/usr/bin/env bash
# ./dev in a scratch repository: what it says and leaves when something is missing, broken or interrupted.
# The set-up and the tool are stand-ins here; their real counterparts run in ./dev test and ./dev demo.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
failures=0
checks=0

# check WHAT COMMAND...: counts and names what is not so.
check() {
  local what=$1
  shift
  checks=$((checks + 1))
  "$@" || { failures=$((failures + 1)); echo "wrong: $what" >&2; [ ! -f "$WORK/said" ] || sed 's/^/  | /' "$WORK/said" >&2; }
}
said() { grep -qE -- "$1" "$WORK/said"; }
lines_said() { [ "$(wc -l <"$WORK/said")" = "$1" ]; }

# Never write below a virtual environment made here: its python is a link to the machine's own.
# fresh: an empty repository in $REPO whose PATH begins with $BIN. use SCRIPT: runs it there with the functions of ./dev.
fresh() {
  REPO=$(mktemp -d "$WORK/repo.XXXX")
  BIN=$REPO/bin
  mkdir -p "$BIN"
  cp -r "$HERE/tools" "$HERE/dev" "$REPO/"
}
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$BIN/$1"; chmod +x "$BIN/$1"; }
use() {
  (
    set -euo pipefail
    ROOT=$REPO PRESET=release LIBTORCH=${LIBTORCH-}
    PATH=$BIN:$PATH
    for part in setup test demo; do source "$REPO/tools/dev/$part.sh"; done
    eval "$1"
  ) >"$WORK/said" 2>&1 </dev/null
}
dev() { PATH=$BIN:$PATH "$REPO/dev" "$@" >"$WORK/said" 2>&1 </dev/null; }

verbs() {
  fresh
  check "./dev alone succeeds" dev
  local verb
  for verb in build cuda test soak demo zero install package python docs bench peers fuzz fmt lint clean; do check "./dev lists $verb" said "^  $verb "; done
  dev frobnicate
  check "an unknown verb is refused" [ $? = 1 ]
  check "and named" said "unknown verb 'frobnicate'"
  dev build --preset fast
  check "an unknown preset is refused" said "unknown preset 'fast'; there are"
  dev build --libtorch
  check "an option without its value is refused" said "^dev: --libtorch needs a value"
}

# Nothing is installed or built before they are right.
benchmarks() {
  fresh
  mkdir "$REPO/bench"
  cp "$HERE"/bench/*.py "$REPO/bench/"
  stand_in dpkg-query 'echo "looked for packages"; exit 1'
  dev peers --set nonsense
  check "an unknown set is refused" [ $? = 1 ]
  check "and named" said 'unknown set nonsense; there are gpt2-bf16'
  check "before anything is done" said '^dev: nothing was measured'
  dev bench --steps
  check "an option without its value is refused" [ $? = 1 ]
  dev bench nonsense
  check "an unknown part is refused" said 'no part of the benchmarks: nonsense \(optimizer'
  check "./dev peers --help succeeds" dev peers --help
  check "with the options" said '^usage: steps.py'
  check "and nothing else" [ "$(grep -c 'looked for' "$WORK/said")" = 0 ]
}

packages() {
  fresh
  stand_in dpkg-query 'case "$*" in *ninja-build) exit 1 ;; *) printf installed ;; esac'
  stand_in id 'echo 1000'
  stand_in sudo 'exit 1'
  use 'need_packages g++ ninja-build'
  check "without root a missing package is an error" [ $? = 1 ]
  check "of one line" lines_said 1
  check "that says what to do" said 'apt-get install --no-install-recommends ninja-build  and then'
  check "packages that are there are enough" use 'need_packages g++ cmake'
  stand_in id 'echo 0'
  stand_in sleep ''
  stand_in apt-get "echo \"\$@\" >>$WORK/apt; [ \$(wc -l <$WORK/apt) -ge 4 ]"
  check "root installs, after trying again" use 'need_packages ninja-build'
  check "only what is missing" grep -q 'install -y --no-install-recommends ninja-build$' "$WORK/apt"
}

libtorch() {
  fresh
  LIBTORCH=$REPO/none use find_libtorch
  check "a wrong --libtorch is an error" [ $? = 1 ]
  check "of one line" lines_said 1
  mkdir -p "$REPO/own/include/torch/csrc/api/include/torch" "$REPO/own/lib"
  touch "$REPO/own/include/torch/csrc/api/include/torch/torch.h" "$REPO/own/lib/libtorch_cpu.so"
  check "an own LibTorch is used" use "LIBTORCH=$REPO/own; find_libtorch; [ \$LIBTORCH = $REPO/own ]"
  check "so is CMAKE_PREFIX_PATH's" use \
    "CMAKE_PREFIX_PATH=/nowhere:$REPO/own; find_libtorch; [ \$LIBTORCH = $REPO/own ]"
  mkdir -p "$REPO/build/release"
  echo "LIBTORCH_DIR:PATH=$REPO/own" >"$REPO/build/release/CMakeCache.txt"
  check "and the build folder's" use "unset CMAKE_PREFIX_PATH; find_libtorch; [ \$LIBTORCH = $REPO/own ]"

  mkdir "$REPO/.venv"
  touch "$REPO/.venv/mine"
  use need_venv
  check "a broken .venv of the user's is an error" [ $? = 1 ]
  check "and stays" [ -f "$REPO/.venv/mine" ]
  rm -r "$REPO/.venv"
  mkdir "$REPO/.venv"
  touch "$REPO/.venv/.made-by-dev" "$REPO/.venv/half"
  check "a half-made .venv is made anew" use need_venv
  check "from nothing" [ ! -e "$REPO/.venv/half" ]
  check "and noticed" said 'half made'
  check "a whole one is left alone" use 'touch $VENV/kept; need_venv; [ -e $VENV/kept ]'

}

# An interrupted pip leaves .installing; the next one trusts no file, which --force-reinstall tells pip.
wheels() {
  fresh
  mkdir -p "$REPO/.venv/bin"
  printf '#!/bin/sh\necho "$@" >>%s/pip\n[ -n "${PIP_WORKS-}" ]\n' "$WORK" >"$REPO/.venv/bin/python"
  chmod +x "$REPO/.venv/bin/python"
  stand_in sleep ''
  use install_wheels
  check "pip that fails is an error" [ $? = 1 ]
  check "tried four times" [ "$(wc -l <"$WORK/pip")" = 4 ]
  check "no stamp is left" [ ! -e "$REPO/.venv/.wheels" ]
  check "the next one installs" use 'export PIP_WORKS=1; install_wheels'
  check "over the broken one" grep -q -- '--force-reinstall torch==' "$WORK/pip"
  : >"$WORK/pip"
  check "the one after that has nothing to do" use install_wheels
  check "and starts no pip" [ ! -s "$WORK/pip" ]
}

closing_line() {
  fresh
  counts() { check "'$1' gives '$2'" use "echo '$1' >log; [ \"\$(close_tests log)\" = '$2' ]"; }
  cd "$WORK" || exit 1
  counts '100% tests passed, 0 tests failed out of 12' '12 passed, 0 failed'
  counts '92% tests passed, 1 tests failed out of 12' '11 passed, 1 failed'
  counts 'No tests were found!!!' '0 passed, 1 failed'
  mkdir -p results
  echo '<testsuites tests="30" failures="0" disabled="0" errors="0" time="1">' >results/a.xml
  printf '%s\n' '<testsuites tests="5" failures="2" disabled="0" errors="0" time="1">' '<testcase result="skipped"' >results/b.xml
  echo '90% tests passed, 1 tests failed out of 10' >log
  check "programs count as their tests" use '[ "$(close_tests log results)" = "40 passed, 2 failed, 1 skipped" ]'
  check "no log is a failure" use '[ "$(close_tests none)" = "0 passed, 1 failed" ]'
  use 'need_packages() { die "no packages"; }; do_test'
  check "a failed set-up fails ./dev test" [ $? = 1 ]
  check "with the closing line" [ "$(tail -1 "$WORK/said")" = "0 passed, 1 failed" ]
  local ready='need_packages() { :; }; set_up() { :; }; need_vocabulary() { :; }; build() { :; }; mkdir -p build/release; cd "$ROOT"'
  mkdir -p "$REPO/build/release"
  stand_in ctest 'echo "50% tests passed, 2 tests failed out of 4"; exit 8'
  use "$ready; do_test"
  check "failed tests fail ./dev test" [ $? != 0 ]
  check "and are counted" [ "$(tail -1 "$WORK/said")" = "2 passed, 2 failed" ]
  stand_in ctest 'echo "100% tests passed, 0 tests failed out of 4"'
  check "passed tests pass" use "$ready; do_test"
  check "and are counted" [ "$(tail -1 "$WORK/said")" = "4 passed, 0 failed" ]
}

# Never a result without a GPU, nor of tests that were skipped.
gpu() {
  fresh
  local gpu=$REPO/tools/dev/gpu.sh verb
  run_gpu() { PATH=$BIN:$PATH OUT=$REPO/results LIBTORCH=$REPO/torch "$gpu" "$@" >"$WORK/said" 2>&1 </dev/null; }
  stand_in nvidia-smi 'exit 9'
  for verb in check tests 'bench ours' build; do
    # shellcheck disable=SC2086  # verb and part
    run_gpu $verb
    check "gpu.sh $verb fails without a GPU" [ $? = 1 ]
    check "and says so" said '^gpu: no GPU: nvidia-smi lists none'
  done
  run_gpu frobnicate
  check "an unknown verb is refused" said "unknown verb 'frobnicate'"
  run_gpu bench nonsense
  check "so is an unknown part" said "bench takes ours, fsdp2, compiled or all, got 'nonsense'"
  check "dry runs need no GPU" run_gpu --dry-run bench all
  check "and print every command" said '^[+] .*/zero bench step --json --device cuda .*--communication fast'
  check "the peers' too" said '^[+] .*fsdp2.py --mode zero3 --device cuda --compile'
  check "and leave nothing" [ ! -e "$REPO/results" ]
  run_gpu pack
  check "pack fails without programs" said 'build/cuda/zero is missing: run ./dev cuda'

  stand_in nvidia-smi 'echo a GPU'
  run_gpu tests
  check "LibTorch is looked for" said '^gpu: no LibTorch with CUDA'
  mkdir -p "$REPO/torch/lib" "$REPO/build/gpu"
  touch "$REPO/torch/lib/libtorch_cuda.so"
  echo "__version__ = '1.13.0'" >"$REPO/torch/version.py"
  run_gpu tests
  check "and must be of the version" said 'is 1.13.0, the programs are for 2.11'
  echo "__version__ = '2.11.0+cu130'" >"$REPO/torch/version.py"
  run_gpu tests
  check "programs are looked for" said '^gpu: no programs in build/cuda or '
  touch "$REPO/build/gpu/zero"
  chmod +x "$REPO/build/gpu/zero"
  results() {
    printf '#!/bin/sh\necho %s >"${1#*json:}"\n' "'{\"testsuites\": [{\"name\": \"S\", \"testsuite\": [{\"name\": \"T\", \"result\": \"$2\"}]}]}'" >"$REPO/build/gpu/$1"
    chmod +x "$REPO/build/gpu/$1"
  }
  results cuda_test COMPLETED
  results cuda_ranks_test SKIPPED
  check "tests of several GPUs may be skipped" run_gpu tests
  check "and are counted" said '^1 passed, 0 not passed'
  results cuda_test SKIPPED
  run_gpu tests
  check "those of one GPU may not" [ $? = 1 ]
  check "and are named" said '^not passed: S.T SKIPPED'
}

# A tool that makes what the real one makes, and notes each call in $REPO/calls.
demo() {
  fresh
  mkdir -p "$REPO/build/release" "$REPO/runs"
  cat >"$REPO/build/release/zero" <<'END'
#!/bin/sh
echo "$*" >>calls
if [ $1 = fit ]; then
  case $2 in *bad*) echo "corrupt data error: $2: not UTF-8" >&2; exit 1 ;; esac
  mkdir runs/demo || exit 1
  echo "$2" >runs/demo/text
  [ ! -e stop ]
fi
END
  chmod +x "$REPO/build/release/zero"
  local ready='set_up() { :; }; build() { :; }; cd "$ROOT"'
  calls() { [ "$(cut -d' ' -f1 "$REPO/calls" | tr '\n' ' ')" = "$1" ]; }
  again() { : >"$REPO/calls"; use "$ready; do_demo $1"; }
  echo one >"$REPO/one.txt"
  echo two >"$REPO/two.txt"
  echo bad >"$REPO/bad.txt"
  touch "$REPO/empty.txt"

  again missing.txt
  check "a missing text is an error" [ $? = 1 ]
  check "of one line" lines_said 1
  again empty.txt
  check "an empty text is an error" [ $? = 1 ]
  touch "$REPO/stop"
  again one.txt
  check "an interrupted training fails the demo" [ $? != 0 ]
  rm "$REPO/stop"
  check "the next one begins anew" again one.txt
  check "with the same text" calls 'fit generate '
  check "and keeps the interrupted one" [ -d "$REPO/runs/demo-1" ]
  check "the one after that" again one.txt
  check "reuses everything" calls 'generate '
  check "and says how to start anew" said 'start anew: rm -r runs/demo'
  again bad.txt
  check "a text that is not UTF-8 is an error" [ $? = 1 ]
  check "after which the run is still there" grep -q one.txt "$REPO/runs/demo/text"
  check "other text" again two.txt
  check "is trained on" calls 'fit generate '
  check "the earlier run is kept" grep -q one.txt "$REPO/runs/demo-2/text"
}

for group in verbs gpu benchmarks packages libtorch wheels closing_line demo; do $group; done
echo "$checks checks, $failures wrong"
[ $failures = 0 ]
