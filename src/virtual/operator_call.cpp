#include "virtual/operator_call.h"

#include <cstring>
#include <utility>
#include <vector>

#include "compute/memory_purpose.h"

namespace zero::virtual_device {
namespace {

void copy_geometry(const at::Tensor& to, const at::Tensor& from) {
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
}

at::Tensor tensor_over(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  copy_geometry(tensor, like);
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

c10::Storage storage_over(size_t bytes, c10::DataPtr data, c10::Allocator& allocator) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                               &allocator, /*resizable=*/true);
}

void* address_of(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
}

}  // namespace

c10::Storage OperatorCall::storage_on_cpu(const c10::Storage& storage) {
  for (const Alias& alias : aliases_)
    if (alias.device.is_alias_of(storage)) return alias.cpu;
  // mutable_data_ptr() throws what a storage without data was given to say.
  void* name = shown_ != Shown::Addresses ? storage.unsafeGetStorageImpl()->mutable_data_ptr().get()
                                          : address_of(storage);
  Arena* arena = name != nullptr ? machine().arena_of_name(name) : nullptr;
  TORCH_CHECK(
      name == nullptr || arena != nullptr,
      "a tensor of a virtual device whose memory is not the device's, or is that of devices that are gone");
  if (shown_ == Shown::Shapes) {
    aliases_.push_back(
        {storage_over(storage.nbytes(), {nullptr, c10::Device(c10::kMeta)}, *c10::GetAllocator(c10::kMeta)),
         storage, nullptr});
    return aliases_.back().cpu;
  }
  void* work = arena != nullptr ? arena->work_at(name) : nullptr;
  aliases_.push_back(
      {storage_over(storage.nbytes(), {work, c10::Device(c10::kCPU)}, kernel_allocator()), storage, work});
  return aliases_.back().cpu;
}

at::Tensor OperatorCall::to_cpu(const at::Tensor& tensor, bool is_written, bool is_read) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kVirtual) {
    host_tensors_ += tensor.dim() > 0 ? 1 : 0;
    return tensor;
  }
  const int device = tensor.device().index();
  TORCH_CHECK(device_ < 0 || device_ == device,
              "expected all tensors on one device, but got virtual:", device_, " and virtual:", device);
  device_ = device;
  for (size_t i = 0; i < operands_.size(); ++i) {
    Operand& operand = operands_[i];
    if (!operand.device.is_same(tensor)) continue;
    operand.is_written |= is_written;
    operand.is_read |= is_read;
    order_.push_back(static_cast<int>(i));
    return operand.cpu;
  }
  order_.push_back(static_cast<int>(operands_.size()));
  const c10::DispatchKey key = shown_ == Shown::Shapes ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  operands_.push_back(
      {tensor_over(storage_on_cpu(tensor.storage()), key, tensor), tensor, is_written, is_read});
  return operands_.back().cpu;
}

void OperatorCall::to_cpu(c10::IValue& value, bool is_written, bool is_read) {
  if (value.isTensor()) {
    value = to_cpu(value.toTensor(), is_written, is_read);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector())
      list.push_back(to_cpu(tensor, is_written, is_read));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined())
        has_mask_ |= tensor->scalar_type() == at::kBool || tensor->scalar_type() == at::kByte;
      list.push_back(tensor ? std::optional(to_cpu(*tensor, is_written, is_read)) : std::nullopt);
    }
    value = std::move(list);
  } else if (value.isStorage() && value.toStorage().device_type() == kVirtual) {
    value = storage_on_cpu(value.toStorage());
  } else if (value.isDevice() && value.toDevice().type() == kVirtual) {
    device_ = index_of(value.toDevice());
    value = c10::Device(shown_ == Shown::Shapes ? c10::kMeta : c10::kCPU);
  } else if (value.isGenerator() && value.toGenerator().device().type() == kVirtual) {
    value = cpu_generator_of(value.toGenerator());
  }
}

// What a kernel would have allocated.
void OperatorCall::take_memory(c10::StorageImpl& device, size_t bytes) {
  c10::DataPtr taken(nullptr, device_at(device_));
  if (bytes > 0) {
    Block& block = machine().take(current_clock(device_), bytes, detail::memory_purpose());
    if (Block* before = block_of(device)) block.written = before->written;
    taken = device_pointer(block);
  }
  device.set_data_ptr_noswap(std::move(taken));
  device.set_nbytes(bytes);
}

// The bytes that a kernel allocated become device memory without moving.
void OperatorCall::adopt(c10::StorageImpl& device, c10::StorageImpl& cpu) {
  if (shown_ == Shown::Shapes) return take_memory(device, cpu.nbytes());
  c10::DataPtr data = cpu.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  c10::DataPtr adopted(nullptr, device_at(device_));
  if (Block* block = adopt_kernel_memory(data)) {
    if (Block* before = block_of(device))
      block->written = before->written;  // resize_ has copied what was there
    adopted = device_pointer(*block);
  } else if (cpu.nbytes() > 0) {  // made by another thread or another allocator
    Block& copy = machine().take(current_clock(device_), cpu.nbytes(), detail::memory_purpose());
    adopted = device_pointer(copy);
    std::memcpy(copy.arena->work_at(adopted.get()), data.get(), cpu.nbytes());
  }
  device.set_data_ptr_noswap(std::move(adopted));
  device.set_nbytes(cpu.nbytes());
}

c10::Storage OperatorCall::storage_on_device(const c10::Storage& storage) {
  for (const Alias& alias : aliases_)
    if (alias.cpu.is_alias_of(storage)) return alias.device;
  c10::Storage made = storage_over(0, {nullptr, device_at(device_)}, device_allocator());
  adopt(*made.unsafeGetStorageImpl(), *storage.unsafeGetStorageImpl());
  aliases_.push_back({storage, made, nullptr});
  return made;
}

at::Tensor OperatorCall::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return tensor;
  for (const Operand& operand : operands_)
    if (operand.cpu.is_same(tensor)) return operand.device;
  const size_t before = aliases_.size();
  at::Tensor result = tensor_over(storage_on_device(tensor.storage()), c10::DispatchKey::PrivateUse1, tensor);
  if (aliases_.size() > before) fresh_.push_back(result);
  return result;
}

void OperatorCall::to_device(c10::IValue& value) {
  if (value.isTensor()) {
    value = to_device(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(to_device(tensor));
    value = std::move(list);
  }
}

bool OperatorCall::take_over_changes() {
  for (Alias& alias : aliases_) {
    c10::StorageImpl& cpu = *alias.cpu.unsafeGetStorageImpl();
    const bool grew = shown_ == Shown::Shapes && cpu.nbytes() > alias.device.nbytes();
    if (address_of(alias.cpu) != alias.data || grew) {
      adopt(*alias.device.unsafeGetStorageImpl(), cpu);
    } else if (cpu.nbytes() != alias.device.nbytes()) {
      alias.device.unsafeGetStorageImpl()->set_nbytes(cpu.nbytes());
    }
  }
  bool writes = false;
  for (Operand& operand : operands_) {
    if (!operand.is_written) continue;
    writes = true;
    const bool has_new_storage = !operand.cpu.storage().is_alias_of(storage_on_cpu(operand.device.storage()));
    if (has_new_storage)
      operand.device.unsafeGetTensorImpl()->set_storage_keep_dtype(storage_on_device(operand.cpu.storage()));
    copy_geometry(operand.device, operand.cpu);
  }
  return writes;
}

c10::SmallVector<at::Tensor, 8> OperatorCall::ordered() const {
  c10::SmallVector<at::Tensor, 8> tensors;
  for (const int index : order_) tensors.push_back(operands_[index].cpu);
  return tensors;
}

}  // namespace zero::virtual_device
