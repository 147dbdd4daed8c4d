#include "mesh/shm/host_memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "zero/error.h"
#include "zero/memory_in_use.h"

namespace zero::detail::shm {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallestSegment = size_t{64} << 20;  // address space only, until it is used

}  // namespace

HostMemory::HostMemory() { add_segment(kSmallestSegment); }

void HostMemory::add_segment(size_t bytes) {
  bytes = (std::max(bytes, kSmallestSegment) + kHugePage - 1) / kHugePage * kHugePage;
  own_.push_back({Segment::create(bytes), BlockMap(bytes), 0});
}

char* HostMemory::take(size_t bytes, bool zero) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : BlockMap::kGrain;
  for (Own& own : own_)
    if (auto offset = own.blocks.take(bytes, alignment)) return hand_out(own, *offset, bytes, zero);
  add_segment(bytes);
  Own& own = own_.back();
  return hand_out(own, own.blocks.take(bytes, alignment).value(), bytes, zero);
}

// Pages that nobody has touched are zero, and stay nobody's until they are.
char* HostMemory::hand_out(Own& own, size_t offset, size_t bytes, bool zero) {
  char* block = own.segment.data() + offset;
  if (zero && offset < own.fresh_from) std::memset(block, 0, std::min(bytes, own.fresh_from - offset));
  own.fresh_from = std::max(own.fresh_from, offset + bytes);
  return block;
}

void HostMemory::give(char* block) {
  for (Own& own : own_)
    if (own.segment.holds(block, 1)) return own.blocks.give(block - own.segment.data());
  fail(ErrorKind::Internal, "shared memory", "a block is given back that is not of this rank");
}

int64_t HostMemory::bytes_of(const char* block) const {
  for (const Own& own : own_)
    if (own.segment.holds(block, 1))
      return static_cast<int64_t>(own.blocks.taken_bytes(block - own.segment.data()));
  fail(ErrorKind::Internal, "shared memory", "a block is counted that is not of this rank");
}

char* HostMemory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  take_back();
  char* const block = take(bytes);
  count_memory(bytes_of(block));
  return block;
}

void HostMemory::release(char* block) {
  const std::lock_guard lock(mutex_);
  count_memory(-bytes_of(block));
  give(block);
}

std::pair<char*, HostMemory::Users*> HostMemory::lend(size_t bytes, int users) {
  const std::lock_guard lock(mutex_);
  take_back();
  char* block = take(bytes, /*zero=*/true);
  auto* count = new (take(sizeof(Users))) Users(users);
  lent_.push_back({block, count});
  return {block, count};
}

void HostMemory::take_back() {
  std::erase_if(lent_, [this](const Lent& lent) {
    if (lent.users->load(std::memory_order_acquire) > 0) return false;
    give(lent.block);
    give(reinterpret_cast<char*>(lent.users));
    return true;
  });
}

std::optional<Location> HostMemory::locate(const void* address, size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto inside = [&](const Segment& segment) {
    return Location{segment.name(),
                    static_cast<uint64_t>(static_cast<const char*>(address) - segment.data())};
  };
  for (const Own& own : own_)
    if (own.segment.holds(address, bytes)) return inside(own.segment);
  for (const auto& [name, segment] : mapped_)
    if (segment.holds(address, bytes)) return inside(segment);
  return std::nullopt;
}

char* HostMemory::resolve(const Location& location, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Segment* segment = nullptr;
  for (const Own& own : own_)
    if (own.segment.name() == location.segment) segment = &own.segment;
  if (segment == nullptr) {
    auto mapped = mapped_.find(location.segment);
    if (mapped == mapped_.end())
      mapped = mapped_.emplace(location.segment, Segment::open(location.segment)).first;
    segment = &mapped->second;
  }
  require(location.offset <= segment->bytes() && bytes <= segment->bytes() - location.offset, ErrorKind::Comm,
          "shared memory of process " + std::to_string(location.segment.pid),
          "bytes " + std::to_string(location.offset) + " to " + std::to_string(location.offset + bytes) +
              " lie outside its segment of " + std::to_string(segment->bytes()));
  return segment->data() + location.offset;
}

}  // namespace zero::detail::shm
