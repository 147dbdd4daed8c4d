#include "compute/cuda_library.h"

#include <ATen/Context.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <filesystem>

#include "zero/error.h"

namespace zero::detail {
namespace {

namespace fs = std::filesystem;

// The folder of libtorch_cpu.so, which has this function of LibTorch's.
fs::path libtorch_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&at::globalContext), &info) || !info.dli_fname) return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

CudaLibrary load() {
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr)
    return {false, "this machine has no NVIDIA driver (libcuda.so.1)",
            "install the driver, or compute on CPU (parallel.backend auto, shm or gloo)"};
  const fs::path file = libtorch_folder() / "libtorch_cuda.so";
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    return {false, "LibTorch in " + file.parent_path().string() + " has no libtorch_cuda.so",
            "use a LibTorch with CUDA: pip install torch==2.11.0"};
  if (dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return {
        false, dlerror(),
        "install the CUDA libraries that LibTorch was built with (./dev cuda, or pip install torch==2.11.0 "
        "with its dependencies)"};
  return {true, "", ""};
}

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = load();
  return library;
}

void require_cuda(const std::string& place) {
  const CudaLibrary& library = cuda_library();
  require(library.is_loaded, ErrorKind::Unsupported, place, library.problem, library.remedy);
  require(c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount() > 0, ErrorKind::Unsupported,
          place, "the driver finds no CUDA device", "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES");
  // LibTorch looks for its CUDA half once, and remembers that it found none.
  require(at::hasCUDA(), ErrorKind::Usage, place,
          "LibTorch was asked for CUDA (by torch::manual_seed, say) before its CUDA half was loaded",
          "call zero::cuda_devices() first of all, or link the program to libtorch_cuda.so");
}

}  // namespace zero::detail
