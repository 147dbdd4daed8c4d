#include "mesh/nccl/library.h"

#include <dlfcn.h>

#include <stdexcept>

#include "zero/error.h"

namespace zero::detail::nccl {
namespace {

[[noreturn]] void missing(const std::string& problem) {
  fail(ErrorKind::Unsupported, "transport nccl", problem,
       "install the NCCL that LibTorch was built with: pip install nvidia-nccl-cu13==2.28.9 beside its wheel "
       "(./dev cuda does), or put the folder of libnccl.so.2 in LD_LIBRARY_PATH");
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Type::float32;
    case at::kBFloat16:
      return Type::bfloat16;
    case at::kHalf:
      return Type::float16;
    case at::kDouble:
      return Type::float64;
    default:
      throw std::logic_error(std::string("NCCL adds up no ") + c10::toString(type));
  }
}

Library load_library(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) missing(dlerror());
  Library library{};
  const auto find = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr) missing(file + " has no " + name);
  };
  find(library.GetVersion, "ncclGetVersion");
  find(library.GetUniqueId, "ncclGetUniqueId");
  find(library.GetErrorString, "ncclGetErrorString");
  find(library.CommInitRank, "ncclCommInitRank");
  find(library.CommAbort, "ncclCommAbort");
  find(library.CommGetAsyncError, "ncclCommGetAsyncError");
  find(library.GroupStart, "ncclGroupStart");
  find(library.GroupEnd, "ncclGroupEnd");
  find(library.AllGather, "ncclAllGather");
  find(library.ReduceScatter, "ncclReduceScatter");
  find(library.Broadcast, "ncclBroadcast");
  find(library.Send, "ncclSend");
  find(library.Recv, "ncclRecv");
  int version = 0;
  if (library.GetVersion(&version) != kSuccess || version < kLeastVersion)
    missing(file + " is NCCL " + version_text(version) + ", at least " + version_text(kLeastVersion) +
            " is needed");
  return library;
}

}  // namespace zero::detail::nccl
