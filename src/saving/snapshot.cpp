#include "saving/snapshot.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/checked.h"
#include "checkpoint/index.h"
#include "checkpoint/names.h"
#include "mesh/agree.h"
#include "saving/checkpoint_parts.h"
#include "saving/frozen.h"

namespace zero::detail {
namespace {

/// Collects pieces and keeps their memory.
class Collector {
 public:
  /// `room_bytes`: of all parts together where they are to be copied; 0: they stay where they are.
  explicit Collector(int64_t room_bytes) {
    if (room_bytes > 0) room_ = at::empty({room_bytes}, at::kByte);
  }

  void add(const Part& part) {
    if (part.is_joined()) return add_joined(part);
    if (part.is_on_disk()) return add_from_disk(part);
    const PartValues lent = part.borrow(StateStore::Use::Read);
    const bool as_it_lies = !room_.defined() && !part.is_split;
    push(part.name, part.shape, part.range(),
         as_it_lies ? lent.values.cpu().contiguous() : copied(part, lent));
    if (as_it_lies) result_.leases.push_back(lent.lease);
  }
  // Small ones: a copy costs nothing.
  void add_whole(const std::string& name, const at::Tensor& tensor) {
    push(name, tensor.sizes().vec(), BoxRange::whole(tensor.sizes()),
         tensor.clone(at::MemoryFormat::Contiguous));
  }
  Snapshot take() {
    if (room_.defined()) result_.alive.push_back(room_);
    return std::move(result_);
  }

 private:
  // A block at a time, when the file is written.
  void add_from_disk(const Part& part) {
    TensorPiece piece{part.name, dtype_of(part.dtype), part.shape, part.range(), nullptr};
    piece.fill = [part](int64_t begin_bytes, std::span<std::byte> out) {
      const auto size = static_cast<int64_t>(c10::elementSize(part.dtype));
      const int64_t count = static_cast<int64_t>(out.size()) / size;
      c10::NoGradGuard no_grad;
      part.borrow(StateStore::Use::Read, begin_bytes / size, count)
          .copy_to(at::from_blob(out.data(), {count}, part.dtype));
    };
    result_.pieces.push_back(std::move(piece));
  }
  // Its boxes one by one: what lies beside each other in the part does not in the whole.
  void add_joined(const Part& part) {
    const at::Tensor values = at::empty({part.numel()}, part.dtype);
    part.borrow(StateStore::Use::Read).copy_to(values);
    for (const PartPiece& piece : part.pieces)
      push(part.name, part.shape, piece.range, taken_piece(values, piece));
  }
  at::Tensor copied(const Part& part, const PartValues& lent) {
    at::Tensor place;
    if (room_.defined()) {
      place = room_.narrow(0, used_, part.bytes()).view(part.dtype);
      used_ += room_of(part);
    } else {
      place = at::empty({part.numel()}, part.dtype);
    }
    lent.copy_to(place);
    return place;
  }
  void push(const std::string& name, std::vector<int64_t> shape, BoxRange range, const at::Tensor& values) {
    result_.pieces.push_back(
        {name, dtype_of(values.scalar_type()), std::move(shape), std::move(range), values.const_data_ptr()});
    result_.alive.push_back(values);
  }

 public:
  // Every part begins where any type may.
  static int64_t room_of(const Part& part) { return round_up(part.bytes(), 64); }

 private:
  at::Tensor room_;
  int64_t used_ = 0;
  Snapshot result_;
};

// For each buffer, whether this rank's differs from rank 0's.
std::vector<char> own_buffers(ShardedModel& model, const std::vector<at::Tensor>& buffers) {
  if (buffers.empty()) return {};
  std::string mine;
  for (const at::Tensor& buffer : buffers) {
    const std::string_view bytes(static_cast<const char*>(buffer.const_data_ptr()), buffer.nbytes());
    const uint64_t checksum = checkpoint::checksum_of(bytes);
    mine.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  }
  const std::string first = gather_text(model.mesh, model.mesh.world(), mine, "buffers")[0];
  std::vector<char> differ;
  for (size_t i = 0; i < buffers.size(); ++i) differ.push_back(first.compare(8 * i, 8, mine, 8 * i, 8) != 0);
  return differ;
}

}  // namespace

Snapshot take_snapshot(ShardedModel& model, bool copies, bool with_frozen) {
  std::vector<Part> parts;
  std::vector<at::Tensor> buffers;
  int64_t room = 0;
  together(model.mesh, model.mesh.world(), "save", [&] {
    parts = parts_of(model, /*share_among_replicas=*/true);
    if (!with_frozen) std::erase_if(parts, [&](const Part& part) { return is_frozen(model, part.name); });
    for (const auto& [name, buffer] : model.buffers) buffers.push_back(buffer.cpu().contiguous());
    for (const Part& part : parts)
      room += part.is_on_disk() || part.is_joined() ? 0 : Collector::room_of(part);
  });
  const std::vector<char> differ = own_buffers(model, buffers);

  Snapshot snapshot;
  together(model.mesh, model.mesh.world(), "save", [&] {
    Collector collector(copies ? room : 0);
    for (const Part& part : parts) collector.add(part);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const std::string name = std::string(checkpoint::kBufferPrefix) + model.buffers[i].first;
      if (model.mesh.rank() == 0) collector.add_whole(name, buffers[i]);
      if (differ[i]) collector.add_whole(own_prefix(model) + name, buffers[i]);
    }
    collector.add_whole(own_prefix(model) + "random", at::detail::getDefaultCPUGenerator().get_state());
    if (!model.mesh.device().is_cpu())
      collector.add_whole(own_prefix(model) + device_random_name(model),
                          at::globalContext().defaultGenerator(model.mesh.device()).get_state());
    snapshot = collector.take();
  });
  return snapshot;
}

}  // namespace zero::detail
