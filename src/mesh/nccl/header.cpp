// library.h says by hand what nccl.h says: where the header is there (libzero_cuda.so is built with it),
// compared.

#if __has_include(<nccl.h>)
#include <nccl.h>

#include <type_traits>

#include "mesh/nccl/library.h"

namespace zero::detail::nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));
static_assert(sizeof(Result) == sizeof(ncclResult_t) && sizeof(Type) == sizeof(ncclDataType_t));
static_assert(sizeof(Comm) == sizeof(ncclComm_t) && sizeof(Stream) == sizeof(cudaStream_t));
static_assert(kSuccess == ncclSuccess && kSum == ncclSum && kLeastVersion <= NCCL_VERSION_CODE);
static_assert(static_cast<int>(Type::uint8) == ncclUint8 && static_cast<int>(Type::float16) == ncclFloat16 &&
              static_cast<int>(Type::float32) == ncclFloat32 &&
              static_cast<int>(Type::float64) == ncclFloat64 &&
              static_cast<int>(Type::bfloat16) == ncclBfloat16);

// Arguments that are passed alike: ours for a pointer, a number or an enumeration of theirs.
template <class Ours, class Theirs>
constexpr bool kIsPassedAlike = std::is_same_v<Ours, Theirs> ||
                                (sizeof(Ours) == sizeof(Theirs) &&
                                 ((std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) ||
                                  ((std::is_enum_v<Ours> || std::is_integral_v<Ours>)&&(
                                      std::is_enum_v<Theirs> || std::is_integral_v<Theirs>)) ||
                                  std::is_same_v<Ours, UniqueId>));

template <class Ours, class Theirs>
constexpr bool kIsAlike = false;
template <class R, class... Ours, class S, class... Theirs>
constexpr bool kIsAlike<R (*)(Ours...), S(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs))
    return kIsPassedAlike<R, S> && (kIsPassedAlike<Ours, Theirs> && ...);
  return false;
}();

#define ZERO_IS_ALIKE(name)                                              \
  static_assert(kIsAlike<decltype(Library::name), decltype(nccl##name)>, \
                "nccl" #name " is declared otherwise")
ZERO_IS_ALIKE(GetVersion);
ZERO_IS_ALIKE(GetUniqueId);
ZERO_IS_ALIKE(GetErrorString);
ZERO_IS_ALIKE(CommInitRank);
ZERO_IS_ALIKE(CommAbort);
ZERO_IS_ALIKE(CommGetAsyncError);
ZERO_IS_ALIKE(GroupStart);
ZERO_IS_ALIKE(GroupEnd);
ZERO_IS_ALIKE(AllGather);
ZERO_IS_ALIKE(ReduceScatter);
ZERO_IS_ALIKE(Broadcast);
ZERO_IS_ALIKE(Send);
ZERO_IS_ALIKE(Recv);

}  // namespace
}  // namespace zero::detail::nccl
#endif
