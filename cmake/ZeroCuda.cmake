# libzero_cuda.so: what src/*/cuda hold, loaded at run time. LibTorch's own CUDA libraries are linked to; what those need
# in turn only has to be there where it runs.
include(CudaToolkit)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows compilers up to CUDA 12
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
file(GLOB zero_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/cuda/*.cpp ${PROJECT_SOURCE_DIR}/src/*/cuda/*.cu)
add_library(zero_cuda SHARED ${zero_cuda_sources} ${PROJECT_SOURCE_DIR}/src/mesh/nccl/header.cpp)
target_include_directories(zero_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_include_directories(zero_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${ZERO_NCCL_INCLUDE_DIRS})
set_target_properties(zero_cuda PROPERTIES CUDA_STANDARD 20 LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
# No fused multiply-add: the bits are the CPU's.
target_compile_options(zero_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>
                                         $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-ffp-contract=off>)
target_link_libraries(zero_cuda PRIVATE LibTorch::LibTorch ${LibTorch_torch_cuda_LIBRARY} ${LibTorch_c10_cuda_LIBRARY}
                                        ${ZERO_CUDART_LIBRARY})
target_link_options(zero_cuda PRIVATE -Wl,--allow-shlib-undefined)
