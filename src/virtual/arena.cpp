#include "virtual/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "base/files.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

constexpr size_t kBlockBytes = 512;
constexpr size_t kPageBytes = 4096;

char* map_shared(int file, size_t bytes, int protection) {
  void* found = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  return found == MAP_FAILED ? nullptr : static_cast<char*>(found);
}

}  // namespace

Arena::Arena(Machine& machine, int device, size_t capacity_bytes)
    : machine_(machine), device_(device), capacity_(round_up(capacity_bytes, kPageBytes)) {
  // Both ranges show the same pages, so that a page may be opened to the host when a fault has been noted.
  const int file = memfd_create("virtual device", MFD_CLOEXEC);
  if (file < 0) fail_errno("virtual device", "create the memory of");
  const bool has_size = ftruncate(file, static_cast<off_t>(capacity_)) == 0;
  if (has_size) names_ = map_shared(file, capacity_, PROT_NONE);
  if (names_ != nullptr) work_ = map_shared(file, capacity_, PROT_READ | PROT_WRITE);
  close(file);
  if (work_ == nullptr) {
    if (names_ != nullptr) munmap(names_, capacity_);
    fail(ErrorKind::Io, "virtual device " + std::to_string(device),
         "the system has no " + std::to_string(capacity_) + " bytes of addresses", "lower capacity_bytes");
  }
  auto whole = std::make_unique<Block>();
  whole->machine = &machine;
  whole->arena = this;
  whole->bytes = capacity_;
  free_.insert({Block::kNoStream, capacity_, 0});
  blocks_.emplace(0, std::move(whole));
}

Arena::~Arena() {
  munmap(names_, capacity_);
  munmap(work_, capacity_);
}

void Arena::split(Block& block, size_t bytes) {
  auto rest = std::make_unique<Block>();
  rest->machine = block.machine;
  rest->arena = this;
  rest->offset = block.offset + bytes;
  rest->bytes = block.bytes - bytes;
  rest->stream = block.stream;
  rest->accesses = block.accesses.cut(bytes);
  block.bytes = bytes;
  free_.insert({rest->stream, rest->bytes, rest->offset});
  blocks_.emplace(rest->offset, std::move(rest));
}

void Arena::add_used(Block& block) {
  used_ += block.bytes;
  by_purpose_[*block.purpose] += block.bytes;
  if (used_ <= peak_) return;
  peak_ = used_;
  peak_by_purpose_ = by_purpose_;
}

Block* Arena::take(size_t bytes, int stream, const std::string& purpose) {
  if (bytes > capacity_) return nullptr;
  const size_t size = round_up(std::max<size_t>(bytes, 1), kBlockBytes);
  for (const int pool : {stream, Block::kNoStream}) {
    const auto found = free_.lower_bound({pool, size, 0});
    if (found == free_.end() || std::get<0>(*found) != pool) continue;
    Block& block = *blocks_.at(std::get<2>(*found));
    free_.erase(found);
    if (block.bytes > size) split(block, size);
    block.is_free = false;
    block.asked_bytes = bytes;
    block.stream = stream;
    block.purpose = &purpose;
    block.written.clear();
    add_used(block);
    return &block;
  }
  return nullptr;
}

void Arena::release(Block& block) {
  used_ -= block.bytes;
  by_purpose_[*block.purpose] -= block.bytes;
}

void Arena::relabel(Block& block, const std::string& purpose) {
  by_purpose_[*block.purpose] -= block.bytes;
  by_purpose_[purpose] += block.bytes;
  block.purpose = &purpose;
  if (used_ == peak_) peak_by_purpose_ = by_purpose_;  // the result of the kernel that made the peak
}

bool Arena::absorb_next(std::map<size_t, std::unique_ptr<Block>>::iterator at) {
  const auto next = std::next(at);
  if (next == blocks_.end()) return false;
  Block &first = *at->second, &second = *next->second;
  if (!first.is_free || !second.is_free || first.stream != second.stream) return false;
  free_.erase({first.stream, first.bytes, first.offset});
  free_.erase({second.stream, second.bytes, second.offset});
  first.accesses.append(std::move(second.accesses), first.bytes);
  first.bytes += second.bytes;
  free_.insert({first.stream, first.bytes, first.offset});
  blocks_.erase(next);
  return true;
}

void Arena::merge_with_neighbours(std::map<size_t, std::unique_ptr<Block>>::iterator at) {
  absorb_next(at);
  if (at != blocks_.begin()) absorb_next(std::prev(at));
}

void Arena::give(Block& block) {
  block.is_free = true;
  block.other_streams.clear();
  free_.insert({block.stream, block.bytes, block.offset});
  merge_with_neighbours(blocks_.find(block.offset));
}

void Arena::forget_streams() {
  free_.clear();
  for (auto& [offset, block] : blocks_) {
    if (!block->is_free) continue;
    block->stream = Block::kNoStream;
    block->accesses.clear();
    free_.insert({Block::kNoStream, block->bytes, offset});
  }
  for (auto at = blocks_.begin(); at != blocks_.end();)
    if (!absorb_next(at)) ++at;
}

Block& Arena::block_at(const void* address) {
  const char* base = has_name(address) ? names_ : work_;
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - base);
  return *std::prev(blocks_.upper_bound(offset))->second;
}

void Arena::open_names(const Block& block) const {
  const size_t begin = block.offset / kPageBytes * kPageBytes;
  mprotect(names_ + begin, round_up(block.offset + block.bytes, kPageBytes) - begin, PROT_READ | PROT_WRITE);
}

void Arena::close_names() const { mprotect(names_, capacity_, PROT_NONE); }

size_t Arena::largest_free_bytes() const {
  size_t most = 0;
  for (const auto& [stream, bytes, offset] : free_) most = std::max(most, bytes);
  return most;
}

void Arena::reset_peak() {
  peak_ = used_;
  peak_by_purpose_ = by_purpose_;
}

}  // namespace zero::virtual_device
