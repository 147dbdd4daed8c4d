# The CUDA compiler and LibTorch's CUDA libraries, for ZERO_CUDA=ON. The toolkit is NVIDIA's own or the wheels that
# `./dev cuda` installs beside LibTorch's wheel (nvidia/cu13). Sets CMAKE_CUDA_COMPILER, LibTorch_torch_cuda_LIBRARY,
# LibTorch_c10_cuda_LIBRARY and ZERO_CUDART_LIBRARY, and ends with what is missing and how to get it.

# Those of CUDA 13.0, which the torch 2.11.0 wheel was built with; ./dev cuda reads this line.
set(ZERO_CUDA_WHEELS nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96)
list(JOIN ZERO_CUDA_WHEELS " " _zero_pip)
set(_zero_remedy "run ./dev cuda, or: pip install --no-deps ${_zero_pip} (beside LibTorch's wheel), or name a toolkit's compiler: -DCMAKE_CUDA_COMPILER=DIR/bin/nvcc")

foreach(_lib torch_cuda c10_cuda)
  find_library(LibTorch_${_lib}_LIBRARY ${_lib} HINTS ${LibTorch_ROOT_DIR}/lib NO_DEFAULT_PATH)
  if(NOT LibTorch_${_lib}_LIBRARY)
    message(FATAL_ERROR "ZERO_CUDA=ON needs a LibTorch with CUDA: lib${_lib}.so is not in ${LibTorch_ROOT_DIR}/lib; "
                        "the wheel of PyPI (pip install torch==2.11.0) has it, +cpu wheels have not")
  endif()
endforeach()

# The wheels' folder lies beside torch's own.
set(_zero_wheels ${LibTorch_ROOT_DIR}/../nvidia/cu13)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ${CUDAToolkit_ROOT}/bin ${_zero_wheels}/bin $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "ZERO_CUDA=ON needs nvcc: ${_zero_remedy}")
  endif()
endif()

# The wheels' nvcc takes its other halves from wheels of their own, and says so in words that nobody understands.
if(CMAKE_CUDA_COMPILER)
  get_filename_component(_zero_nvcc ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(_zero_toolkit ${_zero_nvcc}/../.. ABSOLUTE)
  if(_zero_toolkit MATCHES "/nvidia/cu13$")
    foreach(_part include/crt/host_config.h:nvidia-cuda-crt nvvm/bin/cicc:nvidia-nvvm include/cuda_runtime.h:nvidia-cuda-runtime
                  include/cccl/cuda/std/version:nvidia-cuda-cccl lib/libcudart.so.13:nvidia-cuda-runtime)
      string(REPLACE ":" ";" _part ${_part})
      list(GET _part 0 _file)
      list(GET _part 1 _wheel)
      if(NOT EXISTS ${_zero_toolkit}/${_file})
        message(FATAL_ERROR "ZERO_CUDA=ON: ${_zero_toolkit}/${_file} of the wheel ${_wheel} is missing: ${_zero_remedy}")
      endif()
    endforeach()
  endif()
endif()

# The runtime that LibTorch uses, so that there is one in the process. The wheel has it without the name that -lcudart looks for.
find_library(ZERO_CUDART_LIBRARY NAMES libcudart.so.13 PATHS ${_zero_wheels}/lib ${_zero_toolkit}/lib64 ${_zero_toolkit}/lib NO_DEFAULT_PATH)
if(NOT ZERO_CUDART_LIBRARY)
  message(FATAL_ERROR "ZERO_CUDA=ON needs libcudart.so.13: ${_zero_remedy}")
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY None)

# To compare what the NCCL transport says of nccl.h; the transport needs no header.
find_path(ZERO_NCCL_INCLUDE_DIR nccl.h HINTS ${LibTorch_ROOT_DIR}/../nvidia/nccl/include)
set(ZERO_NCCL_INCLUDE_DIRS "")
if(ZERO_NCCL_INCLUDE_DIR)
  set(ZERO_NCCL_INCLUDE_DIRS ${ZERO_NCCL_INCLUDE_DIR})
else()
  message(STATUS "no nccl.h: what the NCCL transport says of it is not compared")
endif()

# Two generations' own code, and the newest one's as text that the driver compiles for what comes after it.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU architectures of libzero_cuda.so")
endif()
