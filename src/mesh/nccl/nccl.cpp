// Operations match by their order, so tags are not used: messages between two ranks match in the order in
// which they are issued, whatever their tags. wait() only makes the current stream wait.

#include "mesh/nccl/nccl.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "compute/cuda_library.h"
#include "mesh/nccl/watchdog.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using nccl::Comm;
using nccl::Communicator;
using nccl::Library;
using nccl::Result;
using nccl::Stream;
using nccl::Type;

class NcclTransfer final : public Transfer {
 public:
  /// `finish`: what is left to do on the stream that waited; may be empty.
  NcclTransfer(std::shared_ptr<Communicator> communicator, std::shared_ptr<c10::Event> end,
               std::vector<at::Tensor> keep, std::function<void()> finish)
      : communicator_(std::move(communicator)),
        end_(std::move(end)),
        keep_(std::move(keep)),
        finish_(std::move(finish)) {}

  void wait(std::chrono::milliseconds) override {
    communicator_->check();
    communicator_->make_stream_wait(*end_);
    if (finish_) finish_();
  }

  void abort() noexcept override { communicator_->abort("aborted", Communicator::Cause::Asked); }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<c10::Event> end_;
  std::vector<at::Tensor> keep_;
  std::function<void()> finish_;
};

// Adds what NCCL has summed to the outputs, one after the other; on the current stream.
void take_sums(const std::vector<ReducePart>& outs, const at::Tensor& sums) {
  at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const ReducePart& part : outs) {
    const at::Tensor own = sums.narrow(0, begin, part.out.numel());
    begin += part.out.numel();
    if (own.data_ptr() == part.out.data_ptr()) continue;
    if (part.accumulate) {
      part.out.add_(own);
    } else {
      part.out.copy_(own);
    }
  }
}

/// What connects further communicators of a group.
struct Meeting {
  Library library;
  c10::intrusive_ptr<c10d::Store> store;
  c10::Device device;
  std::chrono::milliseconds timeout;
  nccl::Watchdog* watchdog;  // outlives the channels; null: none

  std::shared_ptr<Communicator> connect(const std::string& key, int rank, int size) const {
    auto communicator = std::make_shared<Communicator>(
        library, c10::make_intrusive<c10d::PrefixStore>(key, store), rank, size, device, timeout);
    if (watchdog != nullptr) watchdog->add(communicator);
    return communicator;
  }
};

class NcclChannel final : public Channel {
 public:
  NcclChannel(Meeting meeting, int rank, int size, bool is_fast)
      : meeting_(std::move(meeting)),
        library_(meeting_.library),
        rank_(rank),
        size_(size),
        is_fast_(is_fast),
        all_(meeting_.connect("nccl/all", rank, size)) {}

  // Nothing is added up here, so bytes will do, of whatever type.
  Started all_gather(at::Tensor out, at::Tensor in, int) override {
    return start(all_, "ncclAllGather", {out, in}, [&](Comm comm, Stream stream) {
      return library_.AllGather(in.const_data_ptr(), out.mutable_data_ptr(), in.nbytes(), Type::uint8, comm,
                                stream);
    });
  }

  // One kernel for all pairs: each rank's messages to the others and theirs to it.
  Started exchange(at::Tensor out, at::Tensor in, int) override {
    return start(all_, "ncclSend and ncclRecv", {out, in}, [&](Comm comm, Stream stream) {
      const size_t part_bytes = in.nbytes() / static_cast<size_t>(size_);
      const auto* const from = static_cast<const char*>(in.const_data_ptr());
      auto* const to = static_cast<char*>(out.mutable_data_ptr());
      Result result = library_.GroupStart();
      for (int step = 1; step < size_ && result == nccl::kSuccess; ++step) {
        const int next = (rank_ + step) % size_, before = (rank_ + size_ - step) % size_;
        result = library_.Send(from + static_cast<size_t>(next) * part_bytes, part_bytes, Type::uint8, next,
                               comm, stream);
        if (result == nccl::kSuccess)
          result = library_.Recv(to + static_cast<size_t>(before) * part_bytes, part_bytes, Type::uint8,
                                 before, comm, stream);
      }
      const Result end = library_.GroupEnd();  // a group that was begun must end
      return result == nccl::kSuccess ? end : result;
    });
  }

  Started broadcast(at::Tensor tensor, int root, int) override {
    return start(all_, "ncclBroadcast", {tensor}, [&](Comm comm, Stream stream) {
      void* const data = tensor.mutable_data_ptr();
      return library_.Broadcast(data, data, tensor.nbytes(), Type::uint8, root, comm, stream);
    });
  }

  Started send(at::Tensor tensor, int to, int) override {
    return start(pair(rank_, to), "ncclSend", {tensor}, [&](Comm comm, Stream stream) {
      return library_.Send(tensor.const_data_ptr(), tensor.nbytes(), Type::uint8, kReceiver, comm, stream);
    });
  }

  Started receive(at::Tensor tensor, int from, int) override {
    return start(pair(from, rank_), "ncclRecv", {tensor}, [&](Comm comm, Stream stream) {
      return library_.Recv(tensor.mutable_data_ptr(), tensor.nbytes(), Type::uint8, kSender, comm, stream);
    });
  }

  bool has_reduce_scatter() const override { return is_fast_; }

  Started reduce_scatter(std::vector<ReducePart> outs, at::Tensor in, int) override {
    const int64_t numel = in.numel() / size_;
    put_own(outs, in.narrow(0, rank_ * numel, numel));
    // NCCL writes the output itself where nothing is converted, added or cut.
    const bool is_direct = outs.size() == 1 && !outs[0].accumulate && in.scalar_type() == at::kFloat;
    const at::Tensor sums = is_direct ? outs[0].out : at::empty({numel}, in.options());
    return start(
        all_, "ncclReduceScatter", {in, sums},
        [&](Comm comm, Stream stream) {
          return library_.ReduceScatter(in.const_data_ptr(), sums.mutable_data_ptr(),
                                        static_cast<size_t>(numel), nccl::type_of(in.scalar_type()),
                                        nccl::kSum, comm, stream);
        },
        [outs = std::move(outs), sums] { take_sums(outs, sums); });
  }

 private:
  static constexpr int kSender = 0, kReceiver = 1;  // places in a communicator of two

  // What this rank itself adds lies elsewhere for some outputs; those elements of the input are free.
  static void put_own(const std::vector<ReducePart>& outs, const at::Tensor& row) {
    int64_t begin = 0;
    for (const ReducePart& part : outs) {
      if (part.own.defined()) row.narrow(0, begin, part.out.numel()).copy_(part.own);
      begin += part.out.numel();
    }
  }

  // Messages have a communicator for each pair and direction, because on one stream with the collectives, or
  // with messages the other way, two ranks could each wait for what the other issues later. Both are made at
  // the first message between the two, for which each waits for the other: where all ranks of a ring begin
  // with a message to the next one, none is there for the one before, and the timeout ends it.
  std::shared_ptr<Communicator> pair(int from, int to) {
    const int low = std::min(from, to), high = std::max(from, to);
    if (!pairs_.contains({from, to}))
      for (const auto& [sender, receiver] : {std::pair(low, high), std::pair(high, low)}) {
        const std::string key = "nccl/" + std::to_string(sender) + "/" + std::to_string(receiver);
        pairs_[{sender, receiver}] = meeting_.connect(key, rank_ == sender ? kSender : kReceiver, 2);
      }
    return pairs_.at({from, to});
  }

  Started start(const std::shared_ptr<Communicator>& communicator, const char* name,
                std::vector<at::Tensor> keep, const Communicator::Enqueue& enqueue,
                std::function<void()> finish = {}) {
    auto end = communicator->run(name, enqueue);
    return std::make_unique<NcclTransfer>(communicator, std::move(end), std::move(keep), std::move(finish));
  }

  const Meeting meeting_;
  const Library& library_;
  const int rank_, size_;
  const bool is_fast_;
  std::shared_ptr<Communicator> all_;
  std::map<std::pair<int, int>, std::shared_ptr<Communicator>> pairs_;
};

constexpr std::chrono::milliseconds kSlowestWatch(500);

class NcclTransport final : public Transport {
 public:
  NcclTransport(const TransportOptions& options, const Library& library, bool is_watched)
      : options_(options), library_(library) {
    if (is_watched)
      watchdog_ = std::make_unique<nccl::Watchdog>(
          std::clamp(options.timeout / 8, std::chrono::milliseconds(1), kSlowestWatch));
  }

  std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                   const std::vector<int>& hosts, const std::string&) override {
    return std::make_unique<NcclChannel>(
        Meeting{library_, std::move(store), options_.device, options_.timeout, watchdog_.get()}, rank,
        static_cast<int>(hosts.size()), options_.communication == Communication::fast);
  }

  bool has_fast_sums() const override { return true; }

 private:
  const TransportOptions options_;
  const Library library_;
  std::unique_ptr<nccl::Watchdog> watchdog_;
};

}  // namespace

std::shared_ptr<Transport> make_nccl_transport(const TransportOptions& options, const Library& library,
                                               bool is_watched) {
  return std::make_shared<NcclTransport>(options, library, is_watched);
}

std::shared_ptr<Transport> make_nccl_transport(const TransportOptions& options) {
  require(options.device.is_cuda(), ErrorKind::Unsupported, "transport nccl",
          "moves CUDA tensors only, device " + options.device.str(), "use transport gloo");
  require_cuda("transport nccl");
  return make_nccl_transport(options, nccl::load_library());
}

}  // namespace zero::detail
