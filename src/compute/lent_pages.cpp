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

char* reserve(size_t bytes) {
  void* range = mmap(nullptr, bytes + kLentPageBytes, PROT_NONE, kAddressesOnly, -1, 0);
  require(range != MAP_FAILED, ErrorKind::Io, "lent pages",
          "cannot reserve " + std::to_string(bytes) + " bytes of addresses: " + std::strerror(errno),
          "raise the limit on address space");
  // Aligned, with what is too much given back: a page table moves as a whole.
  auto* begin = static_cast<char*>(range);
  const size_t before = whole_pages(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + bytes, kLentPageBytes - before);
  return begin + before;
}

bool moves(char* from, char* to, size_t bytes) {
  return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED;
}

// The pages at `from` are at `to`; at `from` stays a hole that is filled with zeros where it is touched.
// False where one stayed.
bool move_pages(char* from, char* to, size_t bytes) {
  if (moves(from, to, bytes)) return true;
  // Neighbours may belong to different mappings, of which the kernel moves one at a time.
  bool all = bytes > kLentPageBytes;
  for (size_t page = 0; page < bytes && all; page += kLentPageBytes)
    all = moves(from + page, to + page, kLentPageBytes);
  return all;
}

}  // namespace

LentPages::LentPages(size_t bytes)
    : bytes_(whole_pages(std::max<size_t>(bytes, 1))),
      data_(reserve(bytes_)),
      held_(bytes_ / kLentPageBytes) {}

LentPages::~LentPages() {
  release();
  munmap(data_, bytes_);
}

void LentPages::hold(size_t begin, size_t end) {
  if (end > bytes_) throw std::out_of_range("LentPages::hold");
  const auto past = held_.begin() + static_cast<std::ptrdiff_t>(whole_pages(end) / kLentPageBytes);
  for (auto page = held_.begin() + static_cast<std::ptrdiff_t>(begin / kLentPageBytes); page < past;) {
    const auto first = std::find(page, past, 0);
    page = std::find(first, past, 1);
    for (auto missing = first; missing < page;) {
      const auto count = static_cast<size_t>(page - missing);
      const size_t borrowed = borrow(static_cast<size_t>(missing - held_.begin()), count);
      missing = std::fill_n(missing, borrowed, 1);
    }
  }
}

size_t LentPages::borrow(size_t page, size_t most) {
  loans_.reserve(loans_.size() + 1);
  const FreePages pages = take_free_pages(most * kLentPageBytes);
  char* const at = data_ + page * kLentPageBytes;
  loans_.push_back({at, pages});
  if (!move_pages(pages.data, at, pages.bytes)) {
    madvise(pages.data, pages.bytes, MADV_DONTNEED);
    const bool is_open = mprotect(at, pages.bytes, PROT_READ | PROT_WRITE) == 0;
    require(is_open, ErrorKind::Io, "lent pages",
            std::string("the kernel opens no memory: ") + std::strerror(errno), "raise vm.max_map_count");
    madvise(at, pages.bytes, MADV_HUGEPAGE);
  }
  return pages.bytes / kLentPageBytes;
}

void LentPages::release() {
  if (loans_.empty()) return;
  for (const Loan& loan : loans_) {
    move_pages(loan.at, loan.pages.data, loan.pages.bytes);  // a page that stays behind is dropped
    give_free_pages(loan.pages);
  }
  loans_.clear();
  std::fill(held_.begin(), held_.end(), 0);
  // One mapping of nothing again. Where the kernel refuses, holes stay, which cost nothing either.
  static_cast<void>(mmap(data_, bytes_, PROT_NONE, kAddressesOnly | MAP_FIXED, -1, 0));
}

}  // namespace zero::detail
