#include "compute/lent_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/checked.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr int kAddressesOnly = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

size_t whole_pages(size_t bytes) { return round_up(bytes, kLentPageBytes); }

// Addresses of our own, aligned, with what is too much given back: a page table moves as a whole. Null where
// there are none.
char* reserve(size_t bytes) {
  void* range = mmap(nullptr, bytes + kLentPageBytes, PROT_NONE, kAddressesOnly, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(range);
  const size_t before = whole_pages(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kLentPageBytes - before);
  return begin + before;
}

char* reserve_or_throw(size_t bytes) {
  char* range = reserve(bytes);
  require(range != nullptr, ErrorKind::Io, "lent pages",
          "cannot reserve " + std::to_string(bytes) + " bytes of addresses: " + std::strerror(errno),
          "raise the limit on address space");
  return range;
}

bool open_memory(char* at, size_t bytes) {
  if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  madvise(at, bytes, MADV_HUGEPAGE);
  return true;
}

}  // namespace

LentPages::LentPages(size_t bytes)
    : bytes_(whole_pages(std::max<size_t>(bytes, 1))),
      data_(reserve_or_throw(bytes_)),
      held_(bytes_ / kLentPageBytes) {}

LentPages::~LentPages() {
  release();
  if (!has_lost_) munmap(data_, bytes_);
}

void LentPages::hold(size_t begin, size_t end) {
  if (end > bytes_) throw std::out_of_range("LentPages::hold");
  const auto past = held_.begin() + static_cast<std::ptrdiff_t>(whole_pages(end) / kLentPageBytes);
  for (auto page = held_.begin() + static_cast<std::ptrdiff_t>(begin / kLentPageBytes); page < past;) {
    const auto first = std::find(page, past, 0);
    page = std::find(first, past, 1);
    for (auto missing = first; missing < page;) {
      const size_t borrowed = borrow(missing - held_.begin(), page - missing);
      missing = std::fill_n(missing, borrowed, 1);
    }
  }
}

// Where the kernel is told to move pages to an address (MREMAP_FIXED), it unmaps what is there before it
// looks whether it can, and another thread's mapping may take the place. So pages go to addresses that nobody
// minds losing first. From there, out of one mapping and without anything left behind, they go on to where
// they belong; nothing is left that the kernel could refuse after it has unmapped the place.
LentPages::Moved LentPages::move(char* from, char* to, size_t bytes) {
  char* between = reserve(bytes);
  if (between == nullptr) return Moved::No;
  const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
  if (mremap(from, bytes, bytes, fixed | MREMAP_DONTUNMAP, between) == MAP_FAILED) {
    // Several mappings, of which older kernels move one at a time: `between` is not ours any more. Of other
    // reasons it is not known: the addresses are left alone, and so is moving.
    if (errno != EFAULT) can_move_ = false;
    return Moved::No;
  }
  if (mremap(between, bytes, bytes, fixed, to) != MAP_FAILED) return Moved::Yes;
  has_lost_ = true;
  return Moved::Lost;
}

// The pages at `from` are at `to`, or dropped where one stayed; at `from` stays what is filled with zeros
// where it is touched.
LentPages::Moved LentPages::move_pages(char* from, char* to, size_t bytes) {
  if (!can_move_) return Moved::No;
  Moved moved = move(from, to, bytes);
  if (moved != Moved::No || bytes == kLentPageBytes) return moved;
  moved = Moved::Yes;
  for (size_t page = 0; page < bytes && moved == Moved::Yes && can_move_; page += kLentPageBytes)
    moved = move(from + page, to + page, kLentPageBytes);
  return can_move_ ? moved : Moved::No;
}

size_t LentPages::borrow(size_t page, size_t most) {
  require(!has_lost_, ErrorKind::Io, "lent pages", "the kernel has taken back addresses of theirs");
  loans_.reserve(loans_.size() + 1);
  const FreePages pages = take_free_pages(most * kLentPageBytes);
  char* const at = data_ + page * kLentPageBytes;
  const size_t bytes = pages.bytes > 0 ? pages.bytes : most * kLentPageBytes;
  if (pages.bytes > 0) loans_.push_back({at, pages});
  const Moved moved = pages.bytes > 0 ? move_pages(pages.data, at, bytes) : Moved::No;
  require(moved != Moved::Lost, ErrorKind::Io, "lent pages",
          std::string("the kernel refuses to move pages: ") + std::strerror(errno), "raise vm.max_map_count");
  if (moved == Moved::No) {
    if (pages.bytes > 0) madvise(pages.data, bytes, MADV_DONTNEED);
    require(open_memory(at, bytes), ErrorKind::Io, "lent pages",
            std::string("the kernel opens no memory: ") + std::strerror(errno), "raise vm.max_map_count");
  }
  return bytes / kLentPageBytes;
}

void LentPages::release() {
  for (const Loan& loan : loans_)
    // What is at a lost address stays out of use for good. A page that stays behind is dropped.
    if (has_lost_ || move_pages(loan.at, loan.pages.data, loan.pages.bytes) != Moved::Lost)
      give_free_pages(loan.pages);
  loans_.clear();
  const bool holds = std::find(held_.begin(), held_.end(), 1) != held_.end();
  std::fill(held_.begin(), held_.end(), 0);
  if (!holds || has_lost_) return;
  // One mapping of nothing again. Where the kernel refuses, holes stay, which cost nothing either.
  static_cast<void>(mmap(data_, bytes_, PROT_NONE, kAddressesOnly | MAP_FIXED, -1, 0));
}

}  // namespace zero::detail
