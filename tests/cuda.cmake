# On CUDA devices; each test is skipped by name where there is none.
if(NOT TARGET zero_cuda)
  return()
endif()
zero_test(cuda TORCH USES engine mesh optim compute base FILES cuda)
target_compile_definitions(cuda_test PRIVATE ZERO_TORCH_CUDA="${LibTorch_torch_cuda_LIBRARY}")
add_dependencies(cuda_test zero_cuda)
zero_test(cuda_ranks TORCH RANKS 3 USES engine mesh compute base FILES cuda_ranks)
add_dependencies(cuda_ranks_test zero_cuda)
