#pragma once
// Memory for what is needed at one end of a training step only. The kernel's page tables do what moving
// tensors would: pages that other tensors have left, wherever they lie, get addresses side by side.

#include <cstddef>
#include <vector>

namespace zero::detail {

constexpr size_t kLentPageBytes = size_t{2} << 20;  // what one entry of a page table's upper level covers

/// [data, data + bytes), whole pages.
struct FreePages {
  char* data;
  size_t bytes;
};

/// Unused pages of the training allocator's range: `most_bytes`, a multiple of kLentPageBytes, or fewer where
/// there are not as many neighbours; none where the range is used up. Requires use_training_allocator().
/// Thread safe, as is its inverse.
FreePages take_free_pages(size_t most_bytes);
void give_free_pages(const FreePages& pages);

/// A range of addresses that has memory from hold() to release() only: free pages of the training allocator,
/// moved there by the kernel (mremap) and moved back, without a copy or a page fault. Where the kernel does
/// not move pages (Linux before 5.7) they are dropped at one place and made anew at the other; where the
/// allocator has none, they are new. Reading where nothing is held ends the process. Not thread safe, but
/// safe beside other threads that map memory of their own.
class LentPages {
 public:
  /// Requires use_training_allocator(). Throws Error(Io) where the kernel refuses the addresses.
  explicit LentPages(size_t bytes);
  ~LentPages();
  LentPages(const LentPages&) = delete;
  LentPages& operator=(const LentPages&) = delete;

  char* data() const { return data_; }
  /// Memory, with no values, for [begin, end) and the rest of its pages; what is held keeps its values.
  /// Throws std::out_of_range beyond the range, Error(Io) where the kernel refuses the memory.
  void hold(size_t begin, size_t end);
  /// Gives everything back.
  void release();

 private:
  struct Loan {
    char* at;
    FreePages pages;
  };

  enum class Moved {
    Yes,
    No,    // some pages stayed; both places are as much ours as before
    Lost,  // the place that they should go to may be somebody else's
  };
  Moved move(char* from, char* to, size_t bytes);
  Moved move_pages(char* from, char* to, size_t bytes);
  /// At most `most` pages from the one named on, none of them held; says how many.
  size_t borrow(size_t page, size_t most);

  size_t bytes_;
  char* data_;
  bool can_move_ = true, has_lost_ = false;
  std::vector<char> held_;  // per page
  std::vector<Loan> loans_;
};

}  // namespace zero::detail
