#pragma once
// Where forked ranks wait for each other, past the mesh: what a test orders by it does not depend on time.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <stdexcept>

namespace zero::testing {

/// Made before the ranks are forked, for `ranks` of them; serves once.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {
    void* memory = mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map shared memory");
    came_ = new (memory) Count(0);
  }
  ~Meeting() { munmap(came_, sizeof(Count)); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  /// Comes, and goes on at once.
  void pass_by() const { came_->fetch_add(1); }
  /// Comes; returns once all ranks have. Throws after a minute.
  void come() const {
    pass_by();
    for (int i = 0; came_->load() < ranks_; ++i) {
      if (i == 6000) throw std::runtime_error("not all ranks came to the meeting");
      usleep(10'000);
    }
  }

 private:
  using Count = std::atomic<int>;
  int ranks_;
  Count* came_;
};

}  // namespace zero::testing
