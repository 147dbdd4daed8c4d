# Sets up a machine: apt packages, LibTorch, configured build folder. Sourced by ./dev; uses ROOT, PRESET, LIBTORCH.

BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config python3 python3-venv ca-certificates libgloo-dev
  nlohmann-json3-dev libcli11-dev libpcre2-dev libxxhash-dev zlib1g-dev liburing-dev libyaml-cpp-dev
  libsentencepiece-dev libgtest-dev)

# What torch 2.11.0's metadata asks for; libtorch_cpu links to the two CUDA libraries also where there is no GPU.
TORCH_WHEELS=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
VENV=$ROOT/.venv

say() { printf 'dev: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Registries fail now and then: tries a command up to four times, waiting longer each time.
retry() {
  local wait
  for wait in 2 5 15 0; do
    "$@" && return 0
    [ $wait = 0 ] || { say "failed: $*; again in $wait s"; sleep $wait; }
  done
  return 1
}

# need_space DIR MEBIBYTES WHAT
need_space() {
  local free
  free=$(df --output=avail -BM "$1" | tail -1 | tr -dc 0-9)
  [ "$free" -ge "$2" ] || die "$3 needs $2 MiB on the disk of $1, which has $free MiB; make room there"
}

need_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: taking for granted what Debian calls $*"
    return
  fi
  local package missing=()
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as=() how="apt-get install --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    # sudo may ask for a password only where someone can type it.
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
      die "packages are missing; as root do:  $how  and then run this again"
    fi
    as=(sudo)
  fi
  say "installing ${missing[*]}"
  need_space / 500 "installing packages"
  local get=("${as[@]+"${as[@]}"}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  retry "${get[@]}" update >&2 || say "apt-get update failed; trying with the package lists that are here"
  retry "${get[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install ${missing[*]}; see above, then run this again"
}

is_libtorch() { [ -f "$1/include/torch/csrc/api/include/torch/torch.h" ] && [ -f "$1/lib/libtorch_cpu.so" ]; }

# A Python that can make virtual environments and that the wheel exists for.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  die "no Python 3.10 to 3.14 with venv found; install python3 and python3-venv"
}

# The virtual environment is marked as ours first and as complete last, so a half-made one is seen and made anew.
# One without our mark belongs to the user: it is added to, never removed.
need_venv() {
  local ours=$VENV/.made-by-dev
  if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    [ -f "$ours" ] && [ ! -f "$VENV/.complete" ] || return 0
  fi
  if [ -e "$VENV" ]; then
    [ -f "$ours" ] || die "$VENV is no working virtual environment and not made by ./dev; move it away"
    say "$VENV is half made (an earlier run was interrupted): making it anew"
    rm -rf "$VENV"
  fi
  local python
  python=$(find_python)
  mkdir "$VENV"
  touch "$ours"
  "$python" -m venv "$VENV" || die "$python could not make a virtual environment in $VENV"
  touch "$VENV/.complete"
}

install_wheels() {
  local stamp=$VENV/.wheels wanted="${TORCH_WHEELS[*]}"
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
  need_space "$ROOT" 2600 "LibTorch"
  say "installing LibTorch into .venv (about 0.6 GB to download): $wanted"
  if [ -f "$VENV/.installing" ]; then
    local force=--force-reinstall  # an earlier install was interrupted: trust none of its files
  fi
  touch "$VENV/.installing"
  mkdir -p "$ROOT/.cache/tmp"  # /tmp may be small
  TMPDIR=$ROOT/.cache/tmp retry "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --timeout 60 ${force-} "${TORCH_WHEELS[@]}" >&2 ||
    die "pip could not install LibTorch; is the package registry reached? See above, then run this again"
  rm -rf "$ROOT/.cache/tmp"
  echo "$wanted" >"$stamp"
  rm -f "$VENV/.installing"
}

# Sets LIBTORCH: --libtorch, else CMAKE_PREFIX_PATH's, else what the build folder was configured with, else the wheel.
find_libtorch() {
  local prefix cached prefixes
  if [ -n "$LIBTORCH" ]; then
    is_libtorch "$LIBTORCH" ||
      die "--libtorch $LIBTORCH: expected a folder with include/torch/ and lib/libtorch_cpu.so; name LibTorch's own folder"
    return
  fi
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]+"${prefixes[@]}"}"; do
    for LIBTORCH in "$prefix" "${prefix%/}/../.."; do
      if is_libtorch "$LIBTORCH"; then LIBTORCH=$(realpath "$LIBTORCH"); return; fi
    done
  done
  [ ${#prefixes[@]} = 0 ] || say "CMAKE_PREFIX_PATH names no LibTorch (include/ and lib/libtorch_cpu.so): not using it for that"
  cached=$(cached_libtorch)
  if [[ -n $cached && $cached != "$VENV"/* ]] && is_libtorch "$cached"; then
    LIBTORCH=$cached
    say "LibTorch as at the last build: $LIBTORCH (./dev clean forgets it)"
    return
  fi
  need_venv
  install_wheels
  LIBTORCH=$(echo "$VENV"/lib/python3*/site-packages/torch)
  is_libtorch "$LIBTORCH" || die "no LibTorch in $VENV although pip installed it; remove .venv and run this again"
}

cached_libtorch() { sed -n 's/^LIBTORCH_DIR:PATH=//p' "$ROOT/build/$PRESET/CMakeCache.txt" 2>/dev/null || true; }

configure() {
  local folder=$ROOT/build/$PRESET forget=()
  [ ! -f "$folder/build.ninja" ] || [ "$(cached_libtorch)" != "$LIBTORCH" ] || return 0
  need_space "$ROOT" 2500 "building"
  [ ! -f "$folder/CMakeCache.txt" ] || forget=(-U 'LibTorch_*')
  say "configuring build/$PRESET with LibTorch in $LIBTORCH"
  (cd "$ROOT" && cmake --preset "$PRESET" "${forget[@]+"${forget[@]}"}" -DLIBTORCH_DIR="$LIBTORCH" >"$ROOT/build/configure.log" 2>&1) || {
    cat "$ROOT/build/configure.log" >&2
    die "CMake could not configure build/$PRESET, see above"
  }
}

set_up() {
  mkdir -p "$ROOT/build"
  exec 9>"$ROOT/build/.set-up.lock"
  flock -n 9 || { say "waiting for another ./dev that sets up"; flock 9; }
  need_packages "${BUILD_PACKAGES[@]}"
  find_libtorch
  [ "$PRESET" != cuda ] || need_cuda
  configure
  exec 9>&-
}

# As many compilers as there are cores, and 1.6 GB of memory for each.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ {print int($2 / 1600000)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

# build [TARGET...]: quiet unless there is something to do.
build() {
  local log=$ROOT/build/$PRESET/dev-build.log
  if [ -t 2 ]; then
    cmake --build "$ROOT/build/$PRESET" -j "$(build_jobs)" ${1:+--target "$@"} >&2 || die "the build failed, see above"
    return
  fi
  cmake --build "$ROOT/build/$PRESET" -j "$(build_jobs)" ${1:+--target "$@"} >"$log" 2>&1 || {
    grep -E -A 12 'error|FAILED|Error' "$log" | head -100 >&2
    die "the build failed, see above and $log"
  }
}

need_vocabulary() {
  local folder=$ROOT/.cache/gpt2
  need_venv
  (cd "$ROOT" && PIP="./.venv/bin/python -m pip" retry sh tools/fetch_gpt2_vocab.sh "$folder") ||
    die "GPT-2's vocabulary could not be fetched; see above, then run this again"
}
