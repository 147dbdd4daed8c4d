// Who am I, and where do the ranks meet? Answered from the variables that launchers set.

#include <charconv>
#include <cstdlib>
#include <optional>

#include "mesh/slurm.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {
namespace {

constexpr int kDefaultPort = 29500;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int integer(const char* name, const std::string& value, int low, int high) {
  int number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < low || number > high)
    fail(ErrorKind::Config, std::string("environment variable ") + name,
         "\"" + value + "\" is not a number from " + std::to_string(low) + " to " + std::to_string(high),
         "correct or unset it");
  return number;
}

std::optional<int> integer(const char* name, int low, int high) {
  auto value = variable(name);
  if (!value) return std::nullopt;
  return integer(name, *value, low, high);
}

constexpr int kMostRanks = 1 << 20;

/// The names one launcher gives to the four numbers every launcher gives.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

bool present(const Names& names) { return variable(names.rank) || variable(names.size); }

Rendezvous read_numbers(const Names& names) {
  Rendezvous result;
  result.launcher = names.launcher;
  const char* missing = !variable(names.rank) ? names.rank : !variable(names.size) ? names.size : nullptr;
  if (missing)
    fail(ErrorKind::Config, std::string("environment variable ") + missing,
         std::string("is not set, but ") + (missing == names.rank ? names.size : names.rank) + " is",
         "set both, or neither for a single process");
  result.size = *integer(names.size, 1, kMostRanks);
  result.rank = *integer(names.rank, 0, kMostRanks);
  if (result.rank >= result.size)
    fail(ErrorKind::Config, std::string("environment variable ") + names.rank,
         std::to_string(result.rank) + " is not below " + names.size + "=" + std::to_string(result.size));
  auto local_size = integer(names.local_size, 1, kMostRanks);
  auto local_rank = integer(names.local_rank, 0, kMostRanks);
  // Alone on its host unless the launcher says more: then the device is the first one.
  result.local_rank = local_rank.value_or(0);
  result.local_size = local_size.value_or(result.local_rank + 1);
  if (result.local_rank >= result.local_size)
    fail(ErrorKind::Config, std::string("environment variable ") + names.local_rank,
         std::to_string(result.local_rank) + " is not below " + names.local_size + "=" +
             std::to_string(result.local_size));
  if (result.local_size > result.size)
    fail(ErrorKind::Config, std::string("environment variable ") + names.local_size,
         std::to_string(result.local_size) + " is more than " + names.size + "=" +
             std::to_string(result.size));
  return result;
}

/// A port that all ranks of a job agree on and two jobs on one host rarely share: 20000 to 29999.
int port_from_job(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

/// MASTER_ADDR and MASTER_PORT where set; else loopback (one host) or `first_host`, and a port from the job's
/// id.
void find_meeting_point(Rendezvous& result, const std::string& first_host, const std::string& job) {
  if (result.size == 1) return;
  bool one_host = result.local_size == result.size;
  if (auto address = variable("MASTER_ADDR")) {
    result.address = *address;
  } else if (!one_host) {
    if (first_host.empty())
      fail(ErrorKind::Config, "environment variable MASTER_ADDR",
           "is not set, and the " + std::to_string(result.size) + " ranks are on several hosts",
           "set it to the address of rank 0's host on every rank");
    result.address = first_host;
  }
  result.port = integer("MASTER_PORT", 1, 65535).value_or(job.empty() ? kDefaultPort : port_from_job(job));
}

std::string first_of(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto value = variable(name)) return *value;
  return "";
}

Rendezvous from_torchrun(const Names& names) {
  Rendezvous result = read_numbers(names);
  bool zero = variable("ZERO_LAUNCHER").has_value();
  if (zero) result.launcher = "zero";
  result.external_store = first_of({"TORCHELASTIC_USE_AGENT_STORE"}) == "True";
  if (result.external_store)
    result.attempt = first_of({"TORCHELASTIC_RUN_ID"}) + "." + first_of({"TORCHELASTIC_RESTART_COUNT"});
  if (result.size == 1 && !result.external_store) return result;
  auto address = variable("MASTER_ADDR");
  auto port = integer("MASTER_PORT", 1, 65535);
  if (!address || !port)
    fail(ErrorKind::Config, std::string("environment variable ") + (address ? "MASTER_PORT" : "MASTER_ADDR"),
         "is not set, but RANK and WORLD_SIZE are",
         "set it to where rank 0 listens, or start with zero launch");
  result.address = *address;
  result.port = *port;
  if (result.rank == 0 && zero) result.listen_fd = integer("ZERO_LISTEN_FD", 0, 1 << 20).value_or(-1);
  return result;
}

}  // namespace

Rendezvous rendezvous_from_environment() {
  const Names torchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  if (present(torchrun)) return from_torchrun(torchrun);

  const Names openmpi{"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                      "OMPI_COMM_WORLD_LOCAL_SIZE"};
  if (present(openmpi)) {
    Rendezvous result = read_numbers(openmpi);
    find_meeting_point(result, "", first_of({"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}));
    return result;
  }

  const Names mpich{"mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  if (present(mpich)) {
    Rendezvous result = read_numbers(mpich);
    find_meeting_point(result, "", first_of({"PMI_JOBID"}));
    return result;
  }

  // An sbatch script that runs one process has SLURM_NTASKS but is no task: only srun sets SLURM_PROCID with
  // a step.
  const Names slurm{"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_ID")) {
    Rendezvous result = read_numbers({slurm.launcher, slurm.rank, slurm.size, slurm.local_rank, ""});
    std::string nodes = first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (auto tasks = variable("SLURM_STEP_TASKS_PER_NODE"))
      result.local_size =
          detail::slurm_tasks_on_node(*tasks, integer("SLURM_NODEID", 0, kMostRanks).value_or(0));
    else if (nodes.empty() || detail::slurm_host_count(nodes) == 1)
      result.local_size = result.size;
    if (result.local_rank >= result.local_size)
      fail(ErrorKind::Config, "environment variable SLURM_LOCALID",
           std::to_string(result.local_rank) + " is not below this node's " +
               std::to_string(result.local_size) + " tasks");
    std::string first = nodes.empty() ? "" : detail::slurm_first_host(nodes);
    find_meeting_point(result, first,
                       first_of({"SLURM_JOB_ID", "SLURM_JOBID"}) + "." + first_of({"SLURM_STEP_ID"}));
    return result;
  }
  return {};
}

}  // namespace zero
