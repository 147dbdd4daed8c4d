// Gloo over TCP, through PyTorch's ProcessGroupGloo. The only file that includes Gloo's headers.
//
// Every collective is a set of sends and receives between pairs of ranks, with a tag that names the
// operation. So a failure names the peer, and ranks that issue different operations wait for each other
// instead of reading each other's bytes as their own. Each rank sends and receives what Gloo's own ring or
// all-to-all would.

#define USE_C10D_GLOO
#include <atomic>
#include <cstring>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "mesh/sigpipe.h"
#include "mesh/transport.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class GlooTransfer final : public Transfer {
 public:
  explicit GlooTransfer(std::vector<at::Tensor> keep) : keep_(std::move(keep)) {}

  void add(int peer, c10::intrusive_ptr<c10d::Work> work) { parts_.push_back({peer, std::move(work)}); }

  void wait(milliseconds timeout) override {
    SigpipeBlock block;
    auto deadline = Clock::now() + timeout;
    for (auto& part : parts_) {
      bool done = false;
      auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      try {
        if (!aborted_) done = part.work->wait(std::max(left, milliseconds(1)));
      } catch (const std::exception& e) {
        throw TransferError(first_line(e.what()), {part.peer}, Clock::now() >= deadline);
      }
      if (!done) throw TransferError("aborted", {}, false, true);
    }
  }

  void abort() noexcept override {
    aborted_ = true;
    for (auto& part : parts_) {
      try {
        part.work->abort();
      } catch (...) {  // nothing to abort any more
      }
    }
  }

 private:
  struct Part {
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  std::vector<at::Tensor> keep_;
  std::vector<Part> parts_;
  std::atomic<bool> aborted_{false};
};

class GlooChannel final : public Channel {
 public:
  GlooChannel(c10::intrusive_ptr<c10d::ProcessGroupGloo> backend, int rank, int size)
      : backend_(std::move(backend)), rank_(rank), size_(size) {}

  Started all_gather(at::Tensor out, at::Tensor in, int tag) override {
    auto transfer = std::make_unique<GlooTransfer>(std::vector<at::Tensor>{out, in});
    char* to = bytes(out);
    char* from = bytes(in);
    size_t part = in.nbytes();
    for (int peer : others()) receive_into(*transfer, to + peer * part, part, peer, tag);
    for (int peer : others()) send_from(*transfer, from, part, peer, tag);
    if (from != to + rank_ * part) memcpy(to + rank_ * part, from, part);
    return transfer;
  }

  Started exchange(at::Tensor out, at::Tensor in, int tag) override {
    auto transfer = std::make_unique<GlooTransfer>(std::vector<at::Tensor>{out, in});
    size_t part = in.nbytes() / size_;
    for (int peer : others()) receive_into(*transfer, bytes(out) + peer * part, part, peer, tag);
    for (int peer : others()) send_from(*transfer, bytes(in) + peer * part, part, peer, tag);
    return transfer;
  }

  Started broadcast(at::Tensor tensor, int root, int tag) override {
    if (root != rank_) return receive(tensor, root, tag);
    auto transfer = std::make_unique<GlooTransfer>(std::vector<at::Tensor>{tensor});
    for (int peer : others()) send_from(*transfer, bytes(tensor), tensor.nbytes(), peer, tag);
    return transfer;
  }

  Started send(at::Tensor tensor, int to, int tag) override {
    auto transfer = std::make_unique<GlooTransfer>(std::vector<at::Tensor>{tensor});
    send_from(*transfer, bytes(tensor), tensor.nbytes(), to, tag);
    return transfer;
  }

  Started receive(at::Tensor tensor, int from, int tag) override {
    auto transfer = std::make_unique<GlooTransfer>(std::vector<at::Tensor>{tensor});
    receive_into(*transfer, bytes(tensor), tensor.nbytes(), from, tag);
    return transfer;
  }

  int64_t network_bytes() const override { return sent_bytes_; }

 private:
  static char* bytes(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

  // The other ranks, starting with the next, so that not all ranks send to rank 0 first.
  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int step = 1; step < size_; ++step) ranks.push_back((rank_ + step) % size_);
    return ranks;
  }

  // c10d wants tensors; the transfer's own tensors keep the memory alive.
  static std::vector<at::Tensor> as_bytes(char* data, size_t count) {
    return {at::from_blob(data, {static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kByte))};
  }

  void send_from(GlooTransfer& transfer, char* data, size_t count, int peer, int tag) {
    sent_bytes_ += static_cast<int64_t>(count);
    start(transfer, peer, [&] {
      auto tensors = as_bytes(data, count);
      return backend_->send(tensors, peer, tag);
    });
  }

  void receive_into(GlooTransfer& transfer, char* data, size_t count, int peer, int tag) {
    start(transfer, peer, [&] {
      auto tensors = as_bytes(data, count);
      return backend_->recv(tensors, peer, tag);
    });
  }

  template <typename Start>
  void start(GlooTransfer& transfer, int peer, Start begin) {
    SigpipeBlock block;
    const std::lock_guard lock(mutex_);  // c10d counts what it is given
    try {
      transfer.add(peer, begin());
    } catch (const std::exception& e) {
      std::string text = e.what();
      throw TransferError(text.substr(0, text.find('\n')), {peer}, false);
    }
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> backend_;
  int rank_, size_;
  std::mutex mutex_;
  std::atomic<int64_t> sent_bytes_{0};
};

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(const TransportOptions& options) : options_(options) {
    require(options.device.is_cpu(), ErrorKind::Unsupported, "transport gloo",
            "moves CPU tensors only, device " + options.device.str(), "use transport nccl");
    device_ = c10d::ProcessGroupGloo::createDeviceForHostname(options.interface_address);
  }

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string& name) override {
    const int size = static_cast<int>(hosts.size());
    auto options = c10d::ProcessGroupGloo::Options::create(options_.timeout);
    options->devices.push_back(device_);
    options->threads = 2;
    options->group_name = name;
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    return std::make_unique<GlooChannel>(std::move(backend), rank, size);
  }

 private:
  TransportOptions options_;
  std::shared_ptr<::gloo::transport::Device> device_;
};

}  // namespace

std::shared_ptr<Transport> make_gloo_transport(const TransportOptions& options) {
  return std::make_shared<GlooTransport>(options);
}

}  // namespace zero::detail
