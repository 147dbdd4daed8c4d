#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "recompute/stopwatch.h"
#include "recompute/storage_keeper.h"

namespace zero::detail {
namespace {

struct Counts {
  std::atomic<int64_t> stored_bytes{0}, peak_stored_bytes{0}, written_bytes{0}, read_bytes{0};

  void store(int64_t bytes) {
    written_bytes += bytes;
    const int64_t now = stored_bytes += bytes;
    int64_t peak = peak_stored_bytes;
    while (peak < now && !peak_stored_bytes.compare_exchange_weak(peak, now)) {
    }
  }
};

/// Copies are queued on the device's current stream, out as well as in.
class HostStorage : public KeptStorage {
 public:
  HostStorage(const c10::Storage& storage, std::shared_ptr<Counts> counts)
      : device_(storage.device()),
        bytes_(static_cast<int64_t>(storage.nbytes())),
        counts_(std::move(counts)) {
    const at::Tensor there = at::empty({0}, at::TensorOptions(at::kByte).device(device_));
    host_ = at::empty({bytes_}, at::TensorOptions(at::kByte).pinned_memory(true));
    host_.copy_(there.set_(storage, 0, {bytes_}), /*non_blocking=*/true);
    counts_->store(bytes_);
  }
  ~HostStorage() override { counts_->stored_bytes -= bytes_; }

  c10::Storage bring() override {
    const at::NoGradGuard no_grad;
    const at::Tensor there = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device_));
    there.copy_(host_, /*non_blocking=*/true);
    counts_->read_bytes += bytes_;
    return there.storage();
  }

 private:
  c10::Device device_;
  int64_t bytes_;
  at::Tensor host_;
  std::shared_ptr<Counts> counts_;
};

class HostStorages : public StorageKeeper {
 public:
  bool takes(c10::Device device) const override { return !device.is_cpu(); }
  std::unique_ptr<KeptStorage> put(const c10::Storage& storage) override {
    return std::make_unique<HostStorage>(storage, counts_);
  }
  Rates measure(c10::Device device) override {
    if (device.is_cpu()) return {};
    constexpr int64_t kBytes = int64_t{32} << 20;
    const at::Tensor there = at::empty({kBytes}, at::TensorOptions(at::kByte).device(device)).zero_();
    std::unique_ptr<HostStorage> kept;
    const double out_s = seconds_of(
        device, [&] { kept = std::make_unique<HostStorage>(there.storage(), std::make_shared<Counts>()); });
    const double back_s = seconds_of(device, [&] { kept->bring(); });
    return {.out_s = out_s / kBytes, .back_s = back_s / kBytes};
  }
  ActivationStoreStats stats() const override {
    return {.transport = {},
            .stored_bytes = counts_->stored_bytes,
            .peak_stored_bytes = counts_->peak_stored_bytes,
            .buffer_bytes = 0,
            .written_bytes = counts_->written_bytes,
            .read_bytes = counts_->read_bytes,
            .busy_s = 0};
  }

 private:
  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace

std::shared_ptr<StorageKeeper> keep_on_host() { return std::make_shared<HostStorages>(); }

}  // namespace zero::detail
