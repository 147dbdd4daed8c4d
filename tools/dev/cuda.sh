# ./dev cuda: the build with CUDA, in build/cuda. Sourced by ./dev.

# What libtorch_cuda.so of the torch 2.11.0 wheel links to; NCCL is what ranks on GPUs talk by.
CUDA_RUN_WHEELS=(nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-cufft==12.0.0.61 nvidia-cufile==1.15.1.6
  nvidia-curand==10.4.0.35 nvidia-cusolver==12.0.4.66 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.0
  nvidia-nccl-cu13==2.28.9 nvidia-nvjitlink==13.0.88 nvidia-cuda-nvrtc==13.0.88 nvidia-nvshmem-cu13==3.4.5 nvidia-nvtx==13.0.85)

# The compiler's wheels, as CMake names them too.
cuda_build_wheels() { sed -n 's/^set(ZERO_CUDA_WHEELS \(.*\))$/\1/p' "$ROOT/cmake/CudaToolkit.cmake"; }

# Beside the wheel of LibTorch; another LibTorch comes with a CUDA of its own.
install_cuda_wheels() {
  local stamp=$VENV/.cuda-wheels wanted build
  build=$(cuda_build_wheels)
  [ -n "$build" ] || die "cmake/CudaToolkit.cmake names no ZERO_CUDA_WHEELS"
  wanted="$build ${CUDA_RUN_WHEELS[*]}"
  [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
  need_space "$ROOT" 7000 "the CUDA libraries"
  say "installing the CUDA compiler and libraries into .venv (about 2 GB to download)"
  mkdir -p "$ROOT/.cache/tmp"
  # shellcheck disable=SC2086  # several words
  TMPDIR=$ROOT/.cache/tmp retry "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --timeout 60 $wanted >&2 ||
    die "pip could not install the CUDA wheels; is the package registry reached? See above, then run this again"
  rm -rf "$ROOT/.cache/tmp"
  echo "$wanted" >"$stamp"
}

# The wheels of .venv, unless LibTorch lies elsewhere: then a toolkit on this machine compiles.
need_cuda() {
  if [[ $LIBTORCH = "$VENV"/* ]]; then install_cuda_wheels; return; fi
  [ -f "$LIBTORCH/lib/libtorch_cuda.so" ] ||
    die "$LIBTORCH has no lib/libtorch_cuda.so: name a LibTorch with CUDA (--libtorch DIR), or none to use the wheel of PyPI"
  command -v "${CUDACXX:-nvcc}" >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
    die "no nvcc on PATH or in /usr/local/cuda: install NVIDIA's toolkit, or leave out --libtorch to use the wheels of PyPI"
}

do_cuda() {
  [ $# = 0 ] || die "cuda takes no arguments, got: $*; ./dev --preset cuda test runs the tests"
  PRESET=cuda
  set_up
  build
  say "built: build/cuda with libzero_cuda.so"
}
