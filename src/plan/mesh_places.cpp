#include "plan/mesh_places.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plan/config_options.h"
#include "zero/error.h"

namespace zero {

RankPlaces dp_places_of(const Config& config, int ranks, int hosts, int cuda_devices) {
  require(hosts >= 1 && ranks % hosts == 0, ErrorKind::Config, "--hosts",
          "expected a divisor of the " + std::to_string(ranks) + " ranks, got " + std::to_string(hosts));
  const bool on_cpu = !runs_on_cuda(config.parallel, cuda_devices);
  const bool by_memory = on_cpu && config.parallel.backend != ParallelConfig::Backend::Gloo;
  // Groups at other places of the pipeline may lie otherwise on the hosts; of these the one whose ranks share
  // memory least is planned for.
  const int dp_ranks = data_ranks(config, ranks), of_host = ranks / hosts;
  RankPlaces places{.ranks = dp_ranks,
                    .together = by_memory ? dp_ranks : 1,
                    .on_cpu = on_cpu,
                    .communication = config.parallel.communication};
  if (!by_memory) return places;
  for (int stage = 0; stage < config.parallel.pipeline; ++stage) {
    std::vector<int> memories;
    for (int rank = 0; rank < dp_ranks; ++rank)
      memories.push_back((stage * dp_ranks + rank) * config.parallel.tensor / of_host);
    places.together = std::min(places.together, RankPlaces::of(memories, on_cpu).together);
  }
  return places;
}

}  // namespace zero
