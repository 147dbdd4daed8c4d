#include "seam/storage_access.h"

#include <utility>

namespace zero::detail {
namespace {

// StorageImpl can be told to throw on access but never to stop doing so. Naming a private member in an
// explicit instantiation is the one way C++ allows to reach the flag; a renamed member is a compile error,
// not a surprise.
template <auto Member>
struct Reveal {
  friend auto throw_flag() { return Member; }
};
auto throw_flag();
template struct Reveal<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

struct Context {
  std::shared_ptr<StorageTag> tag;
  c10::DataPtr memory;
};
void delete_context(void* context) { delete static_cast<Context*>(context); }

Context* context_of(const c10::StorageImpl& storage) {
  // Reading the pointer's owner is not reading data: the checks on access do not apply.
  const c10::DataPtr& pointer = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &delete_context ? static_cast<Context*>(pointer.get_context()) : nullptr;
}

c10::DataPtr make_pointer(void* data, std::shared_ptr<StorageTag> tag, c10::DataPtr memory,
                          c10::Device device) {
  return {data, new Context{std::move(tag), std::move(memory)}, &delete_context, device};
}

}  // namespace

StorageTag* tag_of(const c10::StorageImpl* storage) {
  if (storage == nullptr) return nullptr;
  Context* context = context_of(*storage);
  return context != nullptr ? context->tag.get() : nullptr;
}

c10::Storage make_unreadable_storage(int64_t nbytes, c10::Device device, std::shared_ptr<StorageTag> tag,
                                     const std::string& message) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(nbytes),
                       make_pointer(nullptr, std::move(tag), {}, device), nullptr, false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return storage;
}

void attach(c10::StorageImpl& storage, c10::DataPtr memory) {
  Context* context = context_of(storage);
  TORCH_INTERNAL_ASSERT(context != nullptr, "attach: the storage has no tag");
  void* data = memory.get();
  c10::Device device = memory.device();
  storage.*throw_flag() = false;
  storage.set_data_ptr_noswap(make_pointer(data, context->tag, std::move(memory), device));
}

void attach_and_untag(c10::StorageImpl& storage, c10::DataPtr memory) {
  storage.*throw_flag() = false;
  storage.set_data_ptr_noswap(std::move(memory));
}

c10::DataPtr detach(c10::StorageImpl& storage, const std::string& message) {
  Context* context = context_of(storage);
  TORCH_INTERNAL_ASSERT(context != nullptr, "detach: the storage has no tag");
  c10::DataPtr memory = std::move(context->memory);
  c10::Device device = storage._mutable_data_ptr_no_checks().device();
  storage.set_data_ptr_noswap(make_pointer(nullptr, context->tag, {}, device));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return memory;
}

void release_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, storage->device()));
}

void obtain_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->data_ptr().get() != nullptr || storage->nbytes() == 0) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(storage->nbytes()));
}

}  // namespace zero::detail
