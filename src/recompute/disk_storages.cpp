#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "compute/copy.h"
#include "recompute/stopwatch.h"
#include "recompute/storage_keeper.h"
#include "tiers/disk_file.h"

namespace zero::detail {
namespace {

using tiers::DiskFile;

constexpr int64_t kGrowBytes = int64_t{64} << 20;  // of the file, at least
constexpr int kPassedBy = 32;  // nodes of a graph take what they saved in any order, but only their own

/// Memory of the allocator that activations come from, at an address that disks take.
struct Memory {
  at::Tensor holder;
  std::byte* bytes = nullptr;

  explicit operator bool() const { return bytes != nullptr; }
  static Memory of(int64_t size) {
    Memory memory{.holder = at::empty({size + tiers::kAlignment}, at::kByte), .bytes = nullptr};
    auto* const begin = static_cast<std::byte*>(memory.holder.mutable_data_ptr());
    const auto past = reinterpret_cast<uintptr_t>(begin) % tiers::kAlignment;
    memory.bytes = begin + (past == 0 ? 0 : tiers::kAlignment - past);
    return memory;
  }
};

c10::Storage storage_in(const Memory& memory, int64_t bytes) {
  const auto drop = [](void* holder) { delete static_cast<at::Tensor*>(holder); };
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes,
                      c10::DataPtr(memory.bytes, new at::Tensor(memory.holder), drop, at::kCPU), nullptr,
                      /*resizable=*/false);
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const at::Tensor tensor = at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  return tensor.set_(storage, 0, {static_cast<int64_t>(storage.nbytes())});
}

at::Tensor bytes_in(const Memory& memory, int64_t bytes) {
  return at::empty({0}, at::kByte).set_(storage_in(memory, bytes), 0, {bytes});
}

/// Values pass through memory behind forward and ahead of backward, so much of it at most in each direction.
class DiskStorages : public StorageKeeper, public std::enable_shared_from_this<DiskStorages> {
 public:
  explicit DiskStorages(const ActivationStoreOptions& options)
      : buffer_bytes_(options.buffer_bytes),
        file_({.directory = options.path,
               .bytes = 0,
               .block_bytes = options.block_bytes,
               .queue_depth = options.queue_depth,
               .threads = options.threads,
               .key = options.key}) {}

  bool takes(c10::Device /*device*/) const override { return true; }
  std::unique_ptr<KeptStorage> put(const c10::Storage& storage) override;
  ActivationStoreStats stats() const override;
  Rates measure(c10::Device device) override;

 private:
  /// One storage, until nobody needs it any more.
  class Kept : public KeptStorage {
   public:
    ~Kept() override { keeper->remove(*this); }
    c10::Storage bring() override { return keeper->bring(*this); }

    std::shared_ptr<DiskStorages> keeper;
    uint64_t number = 0;  // in the order of put()
    int64_t bytes = 0, disk_bytes = 0;
    c10::Device device = at::kCPU;
    DiskFile::Extent extent = 0;
    Memory memory;                            // its bytes are there, or on their way to there
    DiskFile::Ticket read = DiskFile::kNone;  // where they are on their way
    bool was_brought = false;                 // nobody will ask again, as far as one knows
  };
  /// Under way, to be waited for before the memory goes.
  struct Transfer {
    Kept* kept;  // null: has gone since
    Memory memory;
    DiskFile::Ticket ticket;
    int64_t bytes;
    int passed = 0;  // reads: so many others were brought that should have come later
  };

  c10::Storage bring(Kept& kept);
  void remove(Kept& kept);
  std::pair<DiskFile::Extent, int64_t> room_for(int64_t bytes);
  void finish(std::deque<Transfer>& transfers, int64_t& sum, int64_t most);
  void read_ahead(uint64_t before);
  void drop_reads_passed_by(uint64_t number);
  void start_read(Kept& kept);
  c10::Storage on_device(const Kept& kept, const Memory& memory) const;
  static std::string name_of(const Kept& kept) { return "activation " + std::to_string(kept.number); }

  mutable std::mutex mutex_;
  const int64_t buffer_bytes_;
  std::map<uint64_t, Kept*> kept_;
  std::multimap<int64_t, DiskFile::Extent> free_;  // parts of the file, by size
  std::deque<Transfer> behind_, ahead_;            // writes; reads, the next ones first
  int64_t behind_bytes_ = 0, ahead_bytes_ = 0, file_bytes_ = 0, used_bytes_ = 0;
  int64_t stored_bytes_ = 0, peak_stored_bytes_ = 0;
  uint64_t last_ = 0;
  DiskFile file_;  // ends first, and waits for what is under way
};

/// A free part of about that size, or a new one.
std::pair<DiskFile::Extent, int64_t> DiskStorages::room_for(int64_t bytes) {
  const auto found = free_.lower_bound(bytes);
  if (found != free_.end() && found->first <= bytes + bytes / 8) {
    const std::pair result{found->second, found->first};
    free_.erase(found);
    return result;
  }
  if (used_bytes_ + bytes > file_bytes_) {
    const int64_t more = std::max(kGrowBytes, bytes);
    file_.extend(more);
    file_bytes_ += more;
  }
  used_bytes_ += bytes;
  return {file_.add_extent(bytes), bytes};
}

// Until at most so many bytes are under way. The oldest are first.
void DiskStorages::finish(std::deque<Transfer>& transfers, int64_t& sum, int64_t most) {
  while (sum > most) {
    const Transfer first = std::move(transfers.front());
    transfers.pop_front();
    sum -= first.bytes;
    if (first.kept != nullptr && first.kept->memory.bytes == first.memory.bytes) {
      first.kept->memory = {};
      first.kept->read = DiskFile::kNone;
    }
    file_.wait(first.ticket);
  }
}

std::unique_ptr<KeptStorage> DiskStorages::put(const c10::Storage& storage) {
  auto kept = std::make_unique<Kept>();
  kept->keeper = shared_from_this();
  kept->bytes = static_cast<int64_t>(storage.nbytes());
  kept->device = storage.device();
  const std::lock_guard lock(mutex_);
  const int64_t room = round_up(kept->bytes, tiers::kAlignment);
  finish(behind_, behind_bytes_, std::max<int64_t>(0, buffer_bytes_ - room));
  Memory memory = Memory::of(room + room / 8);
  if (kept->device.is_cpu())
    copy_bytes(memory.bytes, storage.data(), storage.nbytes());
  else
    bytes_in(memory, kept->bytes).copy_(bytes_of(storage));
  std::tie(kept->extent, kept->disk_bytes) = room_for(room);
  kept->number = ++last_;
  const DiskFile::Ticket ticket = file_.write(kept->extent, memory.bytes, name_of(*kept));
  behind_.push_back({.kept = kept.get(), .memory = memory, .ticket = ticket, .bytes = kept->disk_bytes});
  behind_bytes_ += kept->disk_bytes;
  kept->memory = std::move(memory);
  kept_[kept->number] = kept.get();
  stored_bytes_ += kept->disk_bytes;
  peak_stored_bytes_ = std::max(peak_stored_bytes_, stored_bytes_);
  return kept;
}

void DiskStorages::start_read(Kept& kept) {
  kept.memory = Memory::of(kept.disk_bytes);
  kept.read = file_.read(kept.extent, kept.memory.bytes, name_of(kept));
  ahead_.push_back({.kept = &kept, .memory = kept.memory, .ticket = kept.read, .bytes = kept.disk_bytes});
  ahead_bytes_ += kept.disk_bytes;
}

// Backward goes the other way: what was put before that is next.
void DiskStorages::read_ahead(uint64_t before) {
  for (auto next = std::make_reverse_iterator(kept_.lower_bound(before)); next != kept_.rend(); ++next) {
    Kept& kept = *next->second;
    if (kept.memory || kept.was_brought) continue;
    if (ahead_bytes_ + kept.disk_bytes > buffer_bytes_) return;
    start_read(kept);
  }
}

// Those of a backward that goes another way.
void DiskStorages::drop_reads_passed_by(uint64_t number) {
  for (Transfer& read : ahead_)
    if (read.kept != nullptr && read.kept->number > number) read.passed++;
  while (!ahead_.empty() && (ahead_.front().kept == nullptr || ahead_.front().passed > kPassedBy))
    finish(ahead_, ahead_bytes_, ahead_bytes_ - ahead_.front().bytes);
}

c10::Storage DiskStorages::bring(Kept& kept) {
  Memory memory;
  {
    const std::lock_guard lock(mutex_);
    drop_reads_passed_by(kept.number);
    if (!kept.memory) start_read(kept);
    memory = std::exchange(kept.memory, {});
    const DiskFile::Ticket ticket = std::exchange(kept.read, DiskFile::kNone);
    if (ticket != DiskFile::kNone) {
      const auto own = std::find_if(ahead_.begin(), ahead_.end(),
                                    [&](const Transfer& read) { return read.ticket == ticket; });
      ahead_bytes_ -= own->bytes;
      ahead_.erase(own);
    }
    kept.was_brought = true;
    read_ahead(kept.number);
    file_.wait(ticket);
  }
  return on_device(kept, memory);
}

c10::Storage DiskStorages::on_device(const Kept& kept, const Memory& memory) const {
  if (kept.device.is_cpu()) return storage_in(memory, kept.bytes);
  const at::Tensor there = at::empty({kept.bytes}, at::TensorOptions(at::kByte).device(kept.device));
  there.copy_(bytes_in(memory, kept.bytes));
  return there.storage();
}

void DiskStorages::remove(Kept& kept) {
  const std::lock_guard lock(mutex_);
  if (kept.number == 0) return;
  kept_.erase(kept.number);
  free_.emplace(kept.disk_bytes, kept.extent);
  stored_bytes_ -= kept.disk_bytes;
  for (std::deque<Transfer>* const transfers : {&behind_, &ahead_})
    for (Transfer& transfer : *transfers)
      if (transfer.kept == &kept) transfer.kept = nullptr;
}

ActivationStoreStats DiskStorages::stats() const {
  const std::lock_guard lock(mutex_);
  const tiers::DiskFileStats disk = file_.stats();
  return {.transport = file_.description(),
          .stored_bytes = stored_bytes_,
          .peak_stored_bytes = peak_stored_bytes_,
          .buffer_bytes = behind_bytes_ + ahead_bytes_,
          .written_bytes = disk.written_bytes,
          .read_bytes = disk.read_bytes,
          .busy_s = disk.busy_s};
}

// Of the disk alone: between it and a device values pass through memory, which takes a fraction.
StorageKeeper::Rates DiskStorages::measure(c10::Device /*device*/) {
  constexpr int kParts = 4;
  constexpr int64_t kPartBytes = int64_t{8} << 20;
  const std::lock_guard lock(mutex_);
  const Memory memory = Memory::of(kParts * kPartBytes);
  std::memset(memory.bytes, 1, kParts * kPartBytes);
  std::vector<DiskFile::Extent> extents;
  for (int part = 0; part < kParts; ++part) extents.push_back(room_for(kPartBytes).first);
  const auto seconds = [&](bool writes) {
    return seconds_of(at::kCPU, [&] {
      std::vector<DiskFile::Ticket> tickets;
      for (int part = 0; part < kParts; ++part) {
        std::byte* const place = memory.bytes + part * kPartBytes;
        tickets.push_back(writes ? file_.write(extents[part], place, "a measured write")
                                 : file_.read(extents[part], place, "a measured read"));
      }
      for (const DiskFile::Ticket ticket : tickets) file_.wait(ticket);
    });
  };
  constexpr double kBytes = kParts * kPartBytes;
  const double out_s = seconds(true) / kBytes, back_s = seconds(false) / kBytes;
  for (const DiskFile::Extent extent : extents) free_.emplace(kPartBytes, extent);
  return {.out_s = out_s, .back_s = back_s};
}

}  // namespace

std::shared_ptr<StorageKeeper> keep_on_disk(const ActivationStoreOptions& options) {
  return std::make_shared<DiskStorages>(options);
}

}  // namespace zero::detail
