#pragma once
// The part of NCCL that the transport calls. libnccl is loaded when a mesh first asks for it, so that neither
// NCCL nor CUDA is needed to build, and the one that LibTorch has loaded is the one that is used.
//
// Names and numbers are those of nccl.h, which all versions of NCCL 2 share; where CUDA is built for,
// src/mesh/nccl/header.cpp compares them with the header.

#include <torch/types.h>

#include <cstddef>
#include <string>

namespace zero::detail::nccl {

using Comm = void*;    // ncclComm_t
using Stream = void*;  // cudaStream_t
using Result = int;    // ncclResult_t
inline constexpr Result kSuccess = 0;
inline constexpr int kSum = 0;                 // ncclSum
inline constexpr int kLeastVersion = 2'10'00;  // the first with bf16, as ncclGetVersion counts from 2.9 on

enum class Type : int { uint8 = 1, float16 = 6, float32 = 7, float64 = 8, bfloat16 = 9 };

struct UniqueId {
  char internal[128];
};

/// Of types that NCCL adds up. Throws std::logic_error for others: group.cpp has refused them.
Type type_of(at::ScalarType type);

struct Library {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  const char* (*GetErrorString)(Result result);
  Result (*CommInitRank)(Comm* comm, int ranks, UniqueId id, int rank);
  Result (*CommAbort)(Comm comm);
  Result (*CommGetAsyncError)(Comm comm, Result* error);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*AllGather)(const void* in, void* out, size_t count, Type type, Comm comm, Stream stream);
  Result (*ReduceScatter)(const void* in, void* out, size_t count, Type type, int sum, Comm comm,
                          Stream stream);
  Result (*Broadcast)(const void* in, void* out, size_t count, Type type, int root, Comm comm, Stream stream);
  Result (*Send)(const void* in, size_t count, Type type, int peer, Comm comm, Stream stream);
  Result (*Recv)(void* out, size_t count, Type type, int peer, Comm comm, Stream stream);
};

/// Stays loaded as long as the process lives. Throws Unsupported, with what to install, where the file or a
/// function is missing or the version is too old.
Library load_library(const std::string& file = "libnccl.so.2");

}  // namespace zero::detail::nccl
