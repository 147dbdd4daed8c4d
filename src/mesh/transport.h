#pragma once
// What a group needs of a transport: moving bytes. Adding up is done above it, in rank order, so that the
// bits are the same on every transport. One folder per transport; transport.cpp lists them.
//
// Why not c10d::Backend's collectives directly: a Gloo collective that fails does not say which peer it
// waited for, and two ranks that issue different collectives can end the process inside Gloo's own thread.
// Channel keeps peers apart.

#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mesh/group_parts.h"
#include "zero/communication.h"
#include "zero/mesh.h"

namespace zero::detail {

/// Thrown by Transfer::wait and by Channel's operations.
struct TransferError : std::runtime_error {
  TransferError(const std::string& text, std::vector<int> peers, bool timed_out, bool aborted = false)
      : std::runtime_error(text), peers(std::move(peers)), timed_out(timed_out), aborted(aborted) {}
  std::vector<int> peers;  // group ranks it was waiting for; empty if not known
  bool timed_out;
  bool aborted;  // by abort()
};

/// One operation on the wire. Keeps its tensors alive.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Blocks until the buffers may be used (on CUDA: makes the current stream wait). Called at most once.
  virtual void wait(std::chrono::milliseconds timeout) = 0;
  /// True if outputs may be there while others still read this rank's inputs. Then wait_output(), called at
  /// most once and before wait(), blocks for the outputs only.
  virtual bool output_comes_first() const { return false; }
  virtual void wait_output(std::chrono::milliseconds timeout) { wait(timeout); }
  /// Makes a wait() of another thread, now or later, throw. Thread safe.
  virtual void abort() noexcept = 0;
};

/// The connections of one group. Tensors are contiguous and on the mesh's device; `tag` (31 bits) is a hash
/// of the operation, its place in the order, its size and its name, equal on all ranks that do the same
/// thing. A transport that matches operations by order may ignore it. Operations with no bytes are never
/// asked for.
class Channel {
 public:
  using Started = std::unique_ptr<Transfer>;

  virtual ~Channel() = default;
  /// out [size * n] <- in [n] of every rank; `in` may be this rank's part of `out`.
  virtual Started all_gather(at::Tensor out, at::Tensor in, int tag) = 0;
  /// out part r [n] <- rank r's in part of this rank; this rank's own part of `out` may be left unwritten.
  virtual Started exchange(at::Tensor out, at::Tensor in, int tag) = 0;
  virtual Started broadcast(at::Tensor tensor, int root, int tag) = 0;
  virtual Started send(at::Tensor tensor, int to, int tag) = 0;
  virtual Started receive(at::Tensor tensor, int from, int tag) = 0;

  /// True if reduce_scatter() below exists: fp32 sums in rank order, the same bits as exchange and
  /// ordered_sum; or where TransportOptions say fast, in any order, rounded to in's type on the way.
  virtual bool has_reduce_scatter() const { return false; }
  /// in [size, n]; outs, n elements together, (+)= sum over ranks of their row for this rank.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those who do it keep them
  virtual Started reduce_scatter(std::vector<ReducePart>, at::Tensor, int) {
    throw std::logic_error("this channel has no reduce_scatter");
  }

  /// Where the ranks share memory: outs (+)= sum over ranks of their in [n].
  virtual Started all_reduce(std::vector<ReducePart>, at::Tensor, int) {
    throw std::logic_error("this channel shares no memory");
  }

  /// Seconds that its operations have spent inside waits on moving and adding up bytes.
  virtual double worked_s() const { return 0; }

  /// Bytes that this rank has handed to the network, where the channel knows.
  virtual int64_t network_bytes() const { return 0; }

  /// What input_tensor() and common_tensor() promise, where the ranks share memory.
  virtual bool shares_memory() const { return false; }
  virtual at::Tensor empty(int64_t, at::ScalarType) {
    throw std::logic_error("this channel shares no memory");
  }
  virtual at::Tensor together(int64_t, at::ScalarType, int, std::chrono::milliseconds) {
    throw std::logic_error("this channel shares no memory");
  }
};

struct TransportOptions {
  std::string interface_address;       // address to listen on
  torch::Device device = torch::kCPU;  // of the tensors
  std::chrono::milliseconds timeout{};
  Communication communication = Communication::exact;
};

/// Makes the channels of one mesh, all on the same device (Gloo: one listening socket and one thread).
class Transport {
 public:
  virtual ~Transport() = default;
  /// Connects the members of a group, which all call this with stores that share their keys; this one is
  /// number `rank`, and hosts[r] tells on which host member r is. Blocks.
  virtual std::unique_ptr<Channel> connect(c10::intrusive_ptr<c10d::Store> store, int rank,
                                           const std::vector<int>& hosts, const std::string& name) = 0;
  /// Whether its channels do what Communication::fast asks for; others are not asked.
  virtual bool has_fast_sums() const { return false; }
  /// What Group::memories promises, of members on these hosts: each has its own, unless the transport says
  /// otherwise.
  virtual std::vector<int> memories(const std::vector<int>& hosts) const {
    std::vector<int> numbers(hosts.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }
  /// Where this rank is the only one there is and the channels answer for the others, as in a simulation: on
  /// which host each of `ranks` ranks would be. Then nobody is met and connect() gets an empty store. Nothing
  /// where the ranks are real.
  virtual std::optional<std::vector<int>> imagined_hosts(int) const { return std::nullopt; }
};

/// "auto" on CPU is shared memory inside a host and Gloo between hosts. Throws Config for an unknown name,
/// Unsupported for one that this build or machine does not have.
std::shared_ptr<Transport> make_transport(const std::string& name, const TransportOptions& options);

std::shared_ptr<Transport> make_gloo_transport(const TransportOptions& options);

/// Ranks of one host only.
std::shared_ptr<Transport> make_shm_transport(const TransportOptions& options);

/// `inside` for groups on one host, `across` for groups whose members are all on different ones, and both,
/// together (hosts_channel.h), for others. Both are made when the first group needs them.
using MakeTransport = std::function<std::shared_ptr<Transport>()>;
std::shared_ptr<Transport> make_hosts_transport(MakeTransport inside, MakeTransport across,
                                                Communication communication);

/// Of a CUDA device. Throws Unsupported, with what is missing, where there is none or NCCL is not there.
std::shared_ptr<Transport> make_nccl_transport(const TransportOptions& options);

}  // namespace zero::detail
