#include "zero/compute_threads.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "compute/parallel.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr int64_t kPiece = 64 << 10;  // elements

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  require(sched_getaffinity(0, sizeof set, &set) == 0, ErrorKind::Io, "compute threads",
          std::string("the kernel does not tell the cores: ") + std::strerror(errno));
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

}  // namespace

void prepare_compute_threads(int threads) {
  at::set_num_threads(threads);
  // The mode is a register of each thread; the pool's threads take one piece each.
  const at::Tensor pieces = at::zeros({threads * kPiece});
  parallel_over(pieces, kPiece, [](int64_t, int64_t) { at::globalContext().setFlushDenormal(true); });
  at::globalContext().setFlushDenormal(true);
}

std::vector<int> cores_of_rank(std::span<const int> allowed, int rank, int ranks) {
  require(!allowed.empty() && rank >= 0 && rank < ranks, ErrorKind::Usage, "cores",
          "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " on " +
              std::to_string(allowed.size()) + " cores makes no sense");
  const int count = static_cast<int>(allowed.size());
  if (ranks > count) return {allowed[rank % count]};
  const int each = count / ranks, more = count % ranks;
  const int begin = rank * each + std::min(rank, more), end = begin + each + (rank < more ? 1 : 0);
  return {allowed.begin() + begin, allowed.begin() + end};
}

std::vector<int> bind_to_cores(int local_rank, int local_ranks) {
  const std::vector<int> cores = cores_of_rank(allowed_cores(), local_rank, local_ranks);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  require(sched_setaffinity(0, sizeof set, &set) == 0, ErrorKind::Io, "compute threads",
          std::string("the kernel does not bind them to cores: ") + std::strerror(errno),
          "leave parallel.bind_cores out");
  return cores;
}

}  // namespace zero
