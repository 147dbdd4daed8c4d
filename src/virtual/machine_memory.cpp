// The memory of a Machine: blocks, pinned memory, the pages that the host must not touch, and faults' words.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/checked.h"
#include "base/files.h"
#include "virtual/machine.h"
#include "virtual/shapes.h"

namespace zero::virtual_device {
namespace {

constexpr size_t kHostPageBytes = 4096;

std::string tensor_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

}  // namespace

Region region_of(const at::Tensor& tensor) {
  const auto itemsize = static_cast<size_t>(tensor.itemsize());
  if (tensor.is_contiguous()) {
    const auto begin = static_cast<size_t>(tensor.storage_offset()) * itemsize;
    return {begin, begin + tensor.nbytes()};
  }
  return {tensor.sizes().data(), tensor.strides().data(), static_cast<size_t>(tensor.dim()),
          tensor.storage_offset(), itemsize};
}

Machine::~Machine() {
  for (auto& [address, block] : pinned_) munmap(address, block->bytes);
}

Block* Machine::try_take(int clock, size_t bytes, const std::string& purpose) {
  Block* block = arena(device_of(clock)).take(bytes, clock, purpose);
  if (block == nullptr) return nullptr;
  block->owner = ++owners_;
  ++blocks_in_use_;
  block->has_values = !options_.shapes_only || bytes <= kAlwaysValuesBytes;
  if (options_.shapes_only && block->has_values)
    std::memset(block->arena->work_at(block->arena->name_of(*block)), 0, bytes);
  // A write, for another stream must come after it: the memory may have had a user on this one.
  if (options_.checks) {
    const Stamp at{clock, epoch_[clock], "its allocation"};
    block->accesses.push({Region(0, bytes), at, true, block->owner});
  }
  return block;
}

Block& Machine::take(int clock, size_t bytes, const std::string& purpose) {
  const std::lock_guard lock(mutex_);
  const int device = device_of(clock);
  drain_limbo(device);
  if (Block* block = try_take(clock, bytes, purpose)) return *block;
  // Like emptying the cache of a real device's allocator: once it is idle, memory belongs to no stream.
  note_host_wait(device, "out of memory");
  synchronize_device(device);
  drain_limbo(device);
  arena(device).forget_streams();
  if (Block* block = try_take(clock, bytes, purpose)) return *block;
  fail_out_of_memory(arena(device), bytes);
}

void Machine::fail_out_of_memory(const Arena& arena, size_t bytes) const {
  std::vector<std::pair<size_t, std::string>> held;
  for (const auto& [purpose, used] : arena.used_by_purpose())
    if (used > 0) held.emplace_back(used, purpose);
  std::sort(held.rbegin(), held.rend());
  std::string text;
  for (const auto& [used, purpose] : held)
    text += (text.empty() ? "" : ", ") + purpose + " " + std::to_string(used) + " bytes";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "virtual:", arena.device(), " is out of memory: ", bytes,
                   " bytes asked, ", arena.used_bytes(), " of ", arena.capacity_bytes(),
                   " in use, the largest free block has ", arena.largest_free_bytes(),
                   "; held: ", text.empty() ? "nothing" : text);
}

// The next owner works on the same stream: what that has seen cannot conflict with it.
void Machine::give_back(Block& block) {
  block.accesses.forget_seen(state_[block.stream].seen);
  block.arena->give(block);
}

void Machine::free(Block& block) {
  const std::lock_guard lock(mutex_);
  block.arena->release(block);
  --blocks_in_use_;
  if (block.other_streams.empty()) return give_back(block);
  std::vector<Moment> until;
  for (const int clock : block.other_streams) until.push_back(record(clock));
  limbo_[block.arena->device()].push_back({&block, std::move(until)});
}

void Machine::drain_limbo(int device) {
  auto limbo = std::exchange(limbo_[device], {});
  for (Limbo& waiting : limbo) {
    const bool is_over =
        std::all_of(waiting.until.begin(), waiting.until.end(),
                    [this](const Moment& moment) { return moment.time <= state_[kHost].time; });
    if (!is_over) {
      limbo_[device].push_back(std::move(waiting));
      continue;
    }
    // It knows, the program does not: for that the host has not waited.
    for (const Moment& moment : waiting.until) run_queue(moment.seen);
    // The allocator has seen those streams arrive, and so has whoever gets the memory next.
    for (const Moment& moment : waiting.until) waiting.block->accesses.forget_seen(moment.seen);
    give_back(*waiting.block);
  }
}

void Machine::record_stream(Block& block, int clock) {
  const std::lock_guard lock(mutex_);
  if (clock != block.stream) block.other_streams.insert(clock);
}

Block& Machine::take_pinned(size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto block = std::make_unique<Block>();
  block->machine = this;
  block->is_free = false;
  block->asked_bytes = bytes;
  block->bytes = round_up(std::max<size_t>(bytes, 1), kHostPageBytes);
  block->owner = ++owners_;
  void* found = mmap(nullptr, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) fail_errno("pinned memory", "map");
  block->host = static_cast<char*>(found);
  ++blocks_in_use_;
  return *(pinned_[block->host] = std::move(block));
}

void Machine::free_pinned(Block& block) {
  const std::lock_guard lock(mutex_);
  --blocks_in_use_;
  std::erase_if(queue_, [&](const QueuedCopy& copy) { return copy.pinned == &block; });
  munmap(block.host, block.bytes);
  pinned_.erase(block.host);
}

Block* Machine::pinned_block(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto* byte = static_cast<const char*>(address);
  auto found = pinned_.upper_bound(const_cast<char*>(byte));
  if (found == pinned_.begin()) return nullptr;
  Block& block = *std::prev(found)->second;
  return byte < block.host + block.bytes ? &block : nullptr;
}

Arena* Machine::arena_of_name(const void* name) {
  for (const auto& arena : arenas_)
    if (arena->has_name(name)) return arena.get();
  return nullptr;
}

Arena* Machine::arena_of_work(const void* address) {
  for (const auto& arena : arenas_)
    if (arena->has_work(address)) return arena.get();
  return nullptr;
}

int64_t Machine::blocks_in_use() {
  const std::lock_guard lock(mutex_);
  return blocks_in_use_;
}

void Machine::open(const Block& pinned) { mprotect(pinned.host, pinned.bytes, PROT_READ | PROT_WRITE); }

// Closed where a queued copy will write, read-only where one will read. Pages in part of another tensor stay
// as they are, except for the last page of the allocation.
void Machine::protect(Block& pinned) {
  open(pinned);
  for (const QueuedCopy& copy : queue_) {
    if (copy.pinned != &pinned) continue;
    const size_t begin = round_up(copy.region.begin(), kHostPageBytes);
    const size_t end = copy.region.end() >= pinned.asked_bytes
                           ? pinned.bytes
                           : copy.region.end() / kHostPageBytes * kHostPageBytes;
    if (begin < end) mprotect(pinned.host + begin, end - begin, copy.writes_host ? PROT_NONE : PROT_READ);
  }
}

std::string Machine::text_of(const Touch& touch) const {
  const Block& block = *touch.block;
  std::string text =
      touch.tensor != nullptr && touch.tensor->defined() ? tensor_text(*touch.tensor) + " in " : "";
  if (block.arena == nullptr)
    return text + "pinned memory of " + std::to_string(block.asked_bytes) + " bytes";
  return text + "bytes " + std::to_string(block.offset + touch.region.begin()) + " to " +
         std::to_string(block.offset + touch.region.end()) +
         " of virtual:" + std::to_string(block.arena->device()) + " (" +
         (block.purpose != nullptr ? *block.purpose : "free") + ")";
}

void Machine::tell_conflict(const Touch& touch, const Access& earlier, const Access& now) {
  const bool is_reuse = earlier.owner != now.owner;
  const auto side = [](const Access& access) {
    return std::string(access.is_write ? " writes" : " reads") + " on stream " +
           std::to_string(stream_of(access.at.clock)) +
           " of virtual:" + std::to_string(device_of(access.at.clock));
  };
  std::string text = std::string(now.at.work) + side(now) + " " + text_of(touch) + ", not ordered after ";
  text += std::string(earlier.at.work) + ", which" + side(earlier);
  text += is_reuse ? " for the memory's former owner: record_stream() before that one is freed"
                   : ": record an event there and wait for it here";
  note_fault(is_reuse ? FaultKind::EarlyReuse : FaultKind::UnorderedAccess, std::move(text));
}

bool Machine::note_host_access(char* address, bool is_write, const char* last_work) {
  const std::lock_guard lock(mutex_);
  Arena* arena = arena_of_name(address);
  Block* pinned = arena == nullptr ? pinned_block(address) : nullptr;
  if (arena == nullptr && pinned == nullptr) return false;
  if (host_access_count_ < host_accesses_.size())
    host_accesses_[host_access_count_] = {address, is_write, last_work};
  ++host_access_count_;
  if (arena != nullptr) {
    arena->open_names(arena->block_at(address));
  } else {
    mprotect(pinned->host, pinned->bytes, PROT_READ | PROT_WRITE);
  }
  return true;
}

void Machine::drain_host_accesses() {
  if (host_access_count_ == 0) return;
  const size_t kept = std::min(host_access_count_, host_accesses_.size());
  for (size_t i = 0; i < kept; ++i) {
    const HostAccess& access = host_accesses_[i];
    Arena* arena = arena_of_name(access.address);
    Block* block = arena != nullptr ? &arena->block_at(access.address) : pinned_block(access.address);
    if (block == nullptr) continue;  // unmapped since
    const auto at =
        static_cast<size_t>(access.address - (arena != nullptr ? arena->name_of(*block) : block->host));
    std::string text = "host code ";
    text += access.is_write ? "writes " : "reads ";
    text += text_of({block, Region(at, at + 1), nullptr});
    if (const Access* last = block->accesses.last()) text += std::string(", last used by ") + last->at.work;
    if (*access.last_work != '\0')
      text += std::string("; the thread's last operator was ") + access.last_work;
    const bool is_device = arena != nullptr;
    text += is_device ? "; copy the tensor to the host first" : "; wait for the queued copy first";
    note_fault(access.is_write ? (is_device ? FaultKind::HostWrite : FaultKind::PinnedWrite)
                               : (is_device ? FaultKind::HostRead : FaultKind::PinnedRead),
               std::move(text));
  }
  if (host_access_count_ > kept)
    note_fault(FaultKind::HostWrite,
               std::to_string(host_access_count_ - kept) +
                   " more blocks were read or written by host code before the next operator");
  host_access_count_ = 0;
  for (const auto& arena : arenas_) arena->close_names();
}

}  // namespace zero::virtual_device
