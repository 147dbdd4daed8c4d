#pragma once
// A device's connection to the host: copies in each direction on a stream of its own, beside what the device
// computes.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

namespace zero::detail {

/// One direction's copies so far, at the time it was asked for. Empty: nothing to wait for.
class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(std::shared_ptr<c10::Event> end) : end_(std::move(end)) {}
  bool is_pending() const { return end_ != nullptr; }
  /// Whether the device has come so far.
  bool is_over() const { return end_ == nullptr || end_->query(); }
  /// The host waits, where the device has not come so far. The caller names the place (WaitPlace).
  void wait();
  /// What that stream is given next comes after the copies; the host does not wait.
  void order(const c10::Stream& before);

 private:
  std::shared_ptr<c10::Event> end_;
};

/// Not thread safe. A copy's tensors have one size and type; they must live, and the host leave its own
/// alone, until the copy is over. Copies of pinned memory are queued; for others the host waits.
class HostLink {
 public:
  /// Takes two streams of the device's pool.
  explicit HostLink(c10::Device device);

  c10::Device device() const { return device_; }
  /// Copies that are given from now on come after what the current stream of the device has been given.
  void follow_current();
  /// What the current stream is given next comes after these copies.
  void lead_current(Transfer& transfer) const;

  /// From the device to pinned memory, after `before`.
  void copy_down(const at::Tensor& from, const at::Tensor& into, Transfer* before = nullptr);
  /// All copies down so far.
  Transfer downs() const;
  /// From pinned memory to the device, after `before`.
  void copy_up(const at::Tensor& from, const at::Tensor& into, Transfer* before = nullptr);
  Transfer ups() const;
  /// For work that comes after all copies up so far, and before those to come.
  const c10::Stream& up_stream() const { return up_; }

 private:
  Transfer mark(const c10::Stream& stream) const;

  c10::Device device_;
  c10::Stream down_, up_;
};

}  // namespace zero::detail
