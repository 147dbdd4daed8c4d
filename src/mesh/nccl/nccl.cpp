// NCCL through PyTorch's ProcessGroupNCCL, as a plugin (nccl_plugin.cpp loads it). Operations match by their
// order on the device's streams, so tags are not used, and wait() only makes the current stream wait.
//
// A collective that never ends is ended by ProcessGroupNCCL's own watchdog, which ends the process; what the
// other ranks say of it comes from the heartbeats (monitor.h).

#define USE_C10D_NCCL
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "mesh/nccl/plugin.h"
#include "mesh/transport.h"

namespace zero::detail {
namespace {

using c10d::ProcessGroupNCCL;

class NcclTransfer final : public Transfer {
 public:
  NcclTransfer(c10::intrusive_ptr<ProcessGroupNCCL> backend, c10::intrusive_ptr<c10d::Work> work,
               std::vector<at::Tensor> keep)
      : backend_(std::move(backend)), work_(std::move(work)), keep_(std::move(keep)) {}

  void wait(std::chrono::milliseconds) override {
    try {
      work_->wait();
    } catch (const std::exception& e) {
      std::string text = e.what();
      throw TransferError(text.substr(0, text.find('\n')), {}, false);
    }
  }

  void abort() noexcept override {
    try {
      backend_->abort();
    } catch (...) {  // nothing to abort any more
    }
  }

 private:
  c10::intrusive_ptr<ProcessGroupNCCL> backend_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> keep_;
};

class NcclChannel final : public Channel {
 public:
  explicit NcclChannel(c10::intrusive_ptr<ProcessGroupNCCL> backend) : backend_(std::move(backend)) {}
  // Communicators are freed without waiting for the other ranks.
  ~NcclChannel() override {
    try {
      backend_->abort();
    } catch (...) {  // already gone
    }
  }

  Started all_gather(at::Tensor out, at::Tensor in, int) override {
    return start({out, in}, [&] {
      at::Tensor to = bytes(out), from = bytes(in);
      return backend_->_allgather_base(to, from, {});
    });
  }

  Started exchange(at::Tensor out, at::Tensor in, int) override {
    return start({out, in}, [&] {
      at::Tensor to = bytes(out), from = bytes(in);
      std::vector<int64_t> equal;  // empty: equal parts
      return backend_->alltoall_base(to, from, equal, equal, {});
    });
  }

  Started broadcast(at::Tensor tensor, int root, int) override {
    return start({tensor}, [&] {
      std::vector<at::Tensor> tensors{bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return backend_->broadcast(tensors, options);
    });
  }

  Started send(at::Tensor tensor, int to, int tag) override {
    return start({tensor}, [&] {
      std::vector<at::Tensor> tensors{bytes(tensor)};
      return backend_->send(tensors, to, tag);
    });
  }

  Started receive(at::Tensor tensor, int from, int tag) override {
    return start({tensor}, [&] {
      std::vector<at::Tensor> tensors{bytes(tensor)};
      return backend_->recv(tensors, from, tag);
    });
  }

 private:
  // NCCL does not know every dtype; nothing is added up here, so bytes will do.
  static at::Tensor bytes(const at::Tensor& tensor) { return tensor.view(at::kByte); }

  template <typename Start>
  Started start(std::vector<at::Tensor> keep, Start begin) {
    try {
      return std::make_unique<NcclTransfer>(backend_, begin(), std::move(keep));
    } catch (const std::exception& e) {
      std::string text = e.what();
      throw TransferError(text.substr(0, text.find('\n')), {}, false);
    }
  }

  c10::intrusive_ptr<ProcessGroupNCCL> backend_;
};

class NcclTransport final : public Transport {
 public:
  explicit NcclTransport(const TransportOptions& options) : options_(options) {}

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string& name) override {
    const int size = static_cast<int>(hosts.size());
    c10::cuda::CUDAGuard guard(options_.device);
    auto options = ProcessGroupNCCL::Options::create();
    options->timeout = options_.timeout;
    options->group_name = name;
    auto backend = c10::make_intrusive<ProcessGroupNCCL>(store, rank, size, options);
    backend->eagerConnectSingleDevice(options_.device);  // errors come here, not in the first collective
    return std::make_unique<NcclChannel>(std::move(backend));
  }

 private:
  TransportOptions options_;
};

// ncclConfig_t grows from version to version and lies inside ProcessGroupNCCL::Options: with other headers
// than LibTorch was built with, the two would disagree about every field behind it.
void check_version() {
  uint64_t library = torch::cuda::nccl::version();
  constexpr uint64_t kHeaders = (uint64_t{NCCL_MAJOR} << 32) | (uint64_t{NCCL_MINOR} << 16);
  TORCH_CHECK((library & ~uint64_t{0xffff}) == kHeaders, "libzero_nccl.so was built with NCCL headers ",
              NCCL_MAJOR, ".", NCCL_MINOR, ", LibTorch uses NCCL ", library >> 32, ".",
              (library >> 16) & 0xffff,
              ": build it with the headers of that version (-DZERO_NCCL_INCLUDE_DIR=DIR)");
}

}  // namespace
}  // namespace zero::detail

extern "C" void zero_nccl_transport_1(const zero::detail::TransportOptions* options,
                                      std::shared_ptr<zero::detail::Transport>* result) {
  zero::detail::check_version();
  *result = std::make_shared<zero::detail::NcclTransport>(*options);
}
