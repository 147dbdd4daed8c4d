# ./dev python: builds the Python module and runs its tests. Sourced by ./dev.

PYTHON_VENV=$ROOT/.cache/python

# PyTorch with all that `import torch` loads, and transformers for the tests, in a virtual environment of their own.
need_python_torch() {
  [ ! -f "$PYTHON_VENV/.complete" ] || return 0
  need_space "$ROOT" 9000 "PyTorch for Python"
  say "installing PyTorch and transformers into .cache/python (about 2 GB to download)"
  rm -rf "$PYTHON_VENV"
  mkdir -p "$ROOT/.cache/tmp"
  "$(find_python)" -m venv "$PYTHON_VENV"
  TMPDIR=$ROOT/.cache/tmp retry "$PYTHON_VENV/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --timeout 60 \
    "${TORCH_WHEELS[0]}" transformers==5.24.0 numpy >&2 || die "pip could not install PyTorch; see above, then run this again"
  rm -rf "$ROOT/.cache/tmp"
  touch "$PYTHON_VENV/.complete"
}

# Debian's own Python has its headers in a package; others bring them.
need_python_headers() {
  local python=$1 include
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
  [ -f "$include/Python.h" ] || need_packages "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev"
}

# build_python: the module, in build/NAME/python/zero.
build_python() {
  set_up
  [[ $LIBTORCH = "$VENV"/* ]] || die "the Python module is built with PyTorch's wheel in .venv: leave out --libtorch and CMAKE_PREFIX_PATH"
  need_python_headers "$VENV/bin/python"
  cmake -S "$ROOT" -B "$ROOT/build/$PRESET" -DZERO_PYTHON_MODULE=ON -DPython_EXECUTABLE="$VENV/bin/python" >"$ROOT/build/configure.log" 2>&1 || {
    cat "$ROOT/build/configure.log" >&2
    die "CMake could not add the Python module, see above"
  }
  build "$@"
}

do_python() {
  [ $# = 0 ] || die "python takes no arguments, got: $*"
  build_python zero_python zero_tool zero_sentencepiece
  need_python_torch
  PYTHONPATH=$ROOT/build/$PRESET/python ZERO_TOOL=$ROOT/build/$PRESET/zero "$PYTHON_VENV/bin/python" "$ROOT/tests/python/test_zero.py" ||
    die "the Python module's tests failed, see above"
}
