#pragma once
// Names of the places where the engine waits for a transfer, or makes the current stream wait. Who watches
// the order of work (virtual devices do) tells waits apart by them, and tests leave out each in turn.

namespace zero::detail {

/// The innermost scope names what this thread waits for meanwhile. `name` lives for ever. Costs one write.
class WaitPlace {
 public:
  explicit WaitPlace(const char* name);
  ~WaitPlace();
  WaitPlace(const WaitPlace&) = delete;
  WaitPlace& operator=(const WaitPlace&) = delete;

 private:
  const char* before_;
};

/// Of the calling thread; "" outside.
const char* wait_place();

}  // namespace zero::detail
