#pragma once
// The one place that knows how LibTorch keeps a tensor's memory. Everything else asks here.
//
// A storage is *tagged* by the deleter and context of its DataPtr: that is how an operator's arguments lead
// to the unit or the tape they belong to, without a registry. A storage without data is *unreadable*: whoever
// asks for its pointer gets an error with a message of ours, never a null pointer.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace zero::detail {

/// What a tagged storage belongs to. Held by the storage; outlives the owner, who clears his own back
/// pointer.
class StorageTag {
 public:
  virtual ~StorageTag() = default;
  /// Operators that read the storage, which is fp32, compute in fp32 and return this type (wide_operators.h).
  std::optional<at::ScalarType> narrow = {};
};

/// The tag of a storage, or null.
StorageTag* tag_of(const c10::StorageImpl* storage);
inline StorageTag* tag_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage()
             ? tag_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl())
             : nullptr;
}

/// A tagged storage of `nbytes` without data on `device`; reading it throws c10::Error with `message`.
c10::Storage make_unreadable_storage(int64_t nbytes, c10::Device device, std::shared_ptr<StorageTag> tag,
                                     const std::string& message);

/// Gives a tagged storage its data (the storage keeps `memory` alive). All views of it become readable.
void attach(c10::StorageImpl& storage, c10::DataPtr memory);

/// Takes the data away again and returns it; the tag stays. Reading throws c10::Error with `message`.
c10::DataPtr detach(c10::StorageImpl& storage, const std::string& message);

/// Hands the memory of an ordinary tensor and its views back to its allocator; they keep their shapes and
/// must not be read until obtain_memory().
void release_memory(const at::Tensor& tensor);
/// Gives them memory again, with no values, unless they have some.
void obtain_memory(const at::Tensor& tensor);

/// attach(), and the storage is an ordinary one from then on: no tag.
void attach_and_untag(c10::StorageImpl& storage, c10::DataPtr memory);

}  // namespace zero::detail
