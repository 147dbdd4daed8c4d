#pragma once
// Who talks to whom: the ranks of a job as named axes, and the group of ranks along each axis.
// Groups and meshes are cheap values handed in explicitly; there is no default world. A world of one is a
// real mesh: its collectives copy and never wait. One thread at a time may issue collectives on a mesh, in
// the same order on all ranks.

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/communication.h"
#include "zero/trace.h"

namespace zero {

namespace detail {
struct GroupAccess;
struct GroupState;
struct MeshState;
class WorkState;
class Transport;
struct TransportOptions;
}  // namespace detail

/// A collective under way. A default-constructed Work is finished. It keeps its tensors alive. Dropping it
/// without wait() is safe, and leaves its outputs unspecified.
class Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<detail::WorkState> state) : state_(std::move(state)) {}

  /// Blocks until the outputs may be read (on CUDA: until the current stream may). Idempotent.
  /// Throws Error(Comm) naming this rank, the operation, the unit, and the ranks that did not arrive; it is
  /// thrown within the mesh's timeout plus about three seconds, and soon after another rank has died or
  /// reported a failure.
  void wait();
  /// Like wait(), but returns as soon as the outputs may be read; the inputs must stay unchanged until
  /// wait().
  void wait_output();
  bool pending() const { return state_ != nullptr; }

 private:
  std::shared_ptr<detail::WorkState> state_;
};

/// What a group can do; the words of errors and traces ("all_gather", ...).
enum class Operation { AllGather, ReduceScatter, AllReduce, Broadcast, Send, Receive, Barrier };
std::string_view to_string(Operation operation);

/// What a group was asked to move since it was made, counted when an operation is issued. Elements as the
/// ZeRO paper counts them (arXiv 1910.02054, section 7): the full (gathered or unreduced) tensor, twice that
/// for an all-reduce. A group of one moves nothing and counts nothing; barriers count calls only.
struct Traffic {
  int64_t calls = 0;
  int64_t elements = 0;
  int64_t bytes = 0;  // elements in the size they have on the wire
};

/// The ranks along one axis. All collectives are asynchronous: inputs must stay unchanged and outputs unread
/// until wait(). All ranks issue the same collectives in the same order, with the same sizes and `what`,
/// which names the unit in errors. Tensors are contiguous, on the mesh's device; sizes count elements, the
/// shape is free. Throws Usage, before anything is sent, for tensors that do not fit, and Comm once the mesh
/// has failed.
class Group {
 public:
  int rank() const;  // this rank's place along the axis, 0 <= rank < size
  int size() const;
  const std::string& name() const;
  /// The mesh ranks of this group's members, in order.
  std::span<const int> members() const;

  /// out [size * n] <- in [n] of every rank, in rank order. `in` may be this rank's part of `out`. Same
  /// dtype.
  Work all_gather(at::Tensor out, at::Tensor in, std::string_view what) const;

  /// out [n] fp32 <- sum over ranks of their in[rank * n, (rank + 1) * n), added in rank order in fp32
  /// whatever in's floating dtype, so the bits do not depend on timing. With `accumulate` the sum is added to
  /// out's old value. The addition happens in wait(). With Communication::fast NCCL adds, in an order of its
  /// own and in in's type.
  Work reduce_scatter(at::Tensor out, at::Tensor in, bool accumulate, std::string_view what) const;

  /// tensor [n] fp32, fp64, bf16 or fp16 <- sum (or maximum) over ranks, in rank order; the same bits on
  /// every rank. 16-bit types are added in fp32 and rounded once. A NaN anywhere makes the maximum NaN. Ranks
  /// wait for their all_reduces in the order they issued them.
  enum class Reduce { Sum, Max };
  Work all_reduce(at::Tensor tensor, Reduce op, std::string_view what) const;

  /// tensor <- the root's (a group rank) tensor.
  Work broadcast(at::Tensor tensor, int root, std::string_view what) const;

  /// Point to point between group ranks. Both sides give the same tag (any int), size and dtype; several with
  /// the same ones match in order. A send may wait for its receive.
  Work send(at::Tensor tensor, int to, int tag, std::string_view what) const;
  Work receive(at::Tensor tensor, int from, int tag, std::string_view what) const;

  /// Blocks until every rank of the group has called it.
  void barrier(std::string_view what) const;

  /// True where all ranks of the group are on one host and share memory.
  bool shares_memory() const;
  /// For each member, in order, a number: those with the same one share memory. The same on all members.
  std::vector<int> memories() const;

  Traffic traffic() const;
  Traffic traffic(Operation operation) const;
  /// Bytes that this rank has sent to members of other hosts since the group was made, counted where they are
  /// handed to the network transport. On devices 0: NCCL does not say.
  int64_t network_bytes() const;

  explicit Group(std::shared_ptr<detail::GroupState> state) : state_(std::move(state)) {}
  Group() = default;

 private:
  friend struct detail::GroupAccess;
  std::shared_ptr<detail::GroupState> state_;
};

/// One named dimension of the mesh. Exactly one axis may have size -1: what the others leave.
struct Axis {
  std::string name;
  int size = -1;
};

struct MeshOptions {
  // Slowest varying first: rank = ((i0 * n1) + i1) * n2 + ... The engine shards over "dp". With tensor and
  // pipeline parallelism they are {{"pp", p}, {"dp", -1}, {"tp", t}}, Megatron's order of these:
  // rank = ((pp_i * dp) + dp_i) * tp + tp_i, so that ranks that talk most are neighbours.
  std::vector<Axis> axes = {{"dp", -1}};
  torch::Device device = torch::kCPU;  // CUDA: this rank uses device local_rank
  // "auto": shm inside a host and gloo across hosts on CPU, nccl on CUDA; or one of them by name.
  std::string transport = "auto";
  // A transport of the caller's own (mesh/transport.h), in place of those by name: a device's that this
  // library does not know. Empty: `transport`.
  std::function<std::shared_ptr<detail::Transport>(const detail::TransportOptions&)> own_transport = {};
  // fast needs the transport nccl, or auto on CPU: joining throws Config with others where there are several
  // ranks.
  Communication communication = Communication::exact;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};  // of a collective, and of the rendezvous
  // Address the transport listens on. "": loopback where the rendezvous address is, else the address of this
  // host that packets to the rendezvous address leave from.
  std::string interface_address;
  // Ranks with different names do not share memory. "": the environment's ZERO_HOST, else what the kernel
  // says.
  std::string host;
  // The axis "tp" talks in every layer. Unless this is set, joining throws Config on all ranks where ranks
  // along it are on several hosts.
  bool tensor_across_hosts = false;
  // Takes down every collective and every wait; the engine adds what it does. Null: nothing is taken down.
  std::shared_ptr<Trace> trace = {};
};

/// Rank and size as a launcher's environment gives them.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string address = "127.0.0.1";
  int port = 0;                 // 0 only in a world of one
  bool external_store = false;  // the launcher keeps the store (torchrun's agent)
  int listen_fd = -1;  // an already listening socket that rank 0 takes over, so that no port is raced for
  std::string launcher = "none";  // "torchrun", "openmpi", "mpich", "slurm", "zero" or "none"
  // Tells apart jobs that meet at one lasting store: torchrun's run and restart. "" otherwise.
  std::string attempt;
};

/// Reads, in this order: torchrun and `zero launch` (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT,
/// TORCHELASTIC_USE_AGENT_STORE, ZERO_LISTEN_FD), Open MPI (OMPI_COMM_WORLD_*), MPICH/Hydra (PMI_*,
/// MPI_LOCALRANKID), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST). A world of one
/// if there is none. Throws Config naming the variable for half-set, non-numeric or contradictory values
/// (rank >= size, port > 65535).
/// MPI and Slurm give no meeting place. Where MASTER_ADDR is not set it is loopback for ranks on one host,
/// else the first host of Slurm's list (MPI over several hosts: Config). Where MASTER_PORT is not set it is a
/// port from 20000 to 29999 that follows from the job's id, or 29500 without one.
Rendezvous rendezvous_from_environment();

/// Joining a mesh of several ranks silences c10d's own log, whose reports come back as Errors, for the whole
/// process, unless TORCH_CPP_LOG_LEVEL is set.
class Mesh {
 public:
  /// Joins the job that the environment describes. Blocks until all ranks came or the timeout passed; then
  /// throws Error(Comm) naming the ranks that did not come. Throws Config where axes do not multiply to the
  /// world size.
  static Mesh from_environment(const MeshOptions& options = {});
  static Mesh join(const Rendezvous& rendezvous, const MeshOptions& options = {});

  int rank() const;
  int size() const;
  int local_rank() const;
  torch::Device device() const;
  const Rendezvous& rendezvous() const;

  /// How gradients are summed, as MeshOptions gave it.
  Communication communication() const;

  /// All axes with their sizes, slowest varying first.
  std::span<const Axis> axes() const;
  /// All ranks.
  Group world() const;
  /// The ranks that differ from this one only along `axis`, in its order. Throws Usage for an axis the mesh
  /// lacks.
  Group group(std::string_view axis) const;

  /// Cuts an axis into blocks of `inner` neighbouring ranks (hybrid sharding): `inner` are the ranks of this
  /// rank's block, `outer` the ranks with the same place in every block. Collective over the axis; groups are
  /// cached. Throws Config unless inner divides the axis.
  struct Blocks {
    Group inner, outer;
  };
  Blocks split(std::string_view axis, int inner) const;

  /// Seconds that this rank has been blocked in collectives because others were not there yet. Moving and
  /// adding up bytes is work and does not count.
  double waited_s() const;
  /// What MeshOptions gave; null where nothing is taken down.
  Trace* trace() const;

  /// Tells the other ranks why this one gives up, so that their errors can name it. Never throws.
  void report_failure(std::string_view reason) const noexcept;

 private:
  explicit Mesh(std::shared_ptr<detail::MeshState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::MeshState> state_;
};

}  // namespace zero
