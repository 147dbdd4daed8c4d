#include "plan/cluster_search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/error_text.h"
#include "plan/config_options.h"
#include "plan/mesh_places.h"
#include "plan/model_parts.h"
#include "plan/stage_balance.h"
#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

using pipeline::Kind;

constexpr size_t kBest = 10;
constexpr int64_t kMostMicroBatch = 64;
// How many of the candidates, in order, are looked at closely: in all, and of a mesh and stage.
constexpr int kMostLooked = 100, kMostLookedOfMesh = 4;

/// What is chosen. Compared to break ties.
struct Settings {
  int tensor = 1, pipeline = 1, stage = 0;
  Kind schedule = Kind::OneFOneB;
  int chunks = 1;
  int64_t micro_batch = 1, micro_batches = 1;
  bool recompute = false;
  auto tied() const {
    return std::tuple(tensor, pipeline, stage, static_cast<int>(schedule), chunks, -micro_batch, recompute);
  }
};

struct Candidate {
  Settings settings;
  double step_s = 0;
};

std::vector<int> divisors_of(int64_t number, int64_t most) {
  std::vector<int> divisors;
  for (int64_t n = 1; n <= std::min(number, most); ++n)
    if (number % n == 0) divisors.push_back(static_cast<int>(n));
  return divisors;
}

void apply(const Settings& settings, Config& config) {
  config.parallel.tensor = settings.tensor;
  config.parallel.sequence = settings.tensor > 1 && config.data.sequence_length % settings.tensor == 0;
  config.parallel.pipeline = settings.pipeline;
  config.parallel.schedule = std::string(pipeline::to_string(settings.schedule));
  if (settings.schedule == Kind::Interleaved) config.parallel.chunks = settings.chunks;
  config.parallel.stage_blocks = {};
  config.zero.stage = settings.stage;
  config.train_micro_batch_size = settings.micro_batch;
  config.gradient_accumulation_steps = settings.micro_batches;
  config.recompute.every = settings.recompute ? kRecomputeAll : kRecomputeNone;
}

/// Micro-batches whose activations a rank keeps at most (arXiv 2104.04473, 2205.05198, 2401.10241).
double kept_by_formula(const Settings& s, bool is_first) {
  const auto p = static_cast<double>(s.pipeline), m = static_cast<double>(s.micro_batches);
  switch (s.schedule) {
    case Kind::GPipe:
      return m;
    case Kind::OneFOneB:
      return std::min(m, is_first ? p : 1);
    case Kind::Interleaved: {
      const double v = s.chunks;
      return std::min(m, is_first ? p * (1 + (p - 1) / (p * v)) : 1 + p * (v - 1) / v);
    }
    case Kind::ZbH1:
      return std::min(m, p);
    default:
      return std::min(m, 2 * p - 1);
  }
}

/// The first, the heaviest and the last rank of a pipeline, with their plans for one and for two
/// micro-batches.
struct Ranks {
  std::vector<PipelineRankPlan> once, twice;
  size_t heaviest = 0;
};

class Searcher {
 public:
  Searcher(const Config& config, const ModuleSpec& model, const PartOf& part_of, const Cluster& cluster)
      : given_(config), model_(model), part_of_(part_of), cluster_(cluster), batch_(config.train_batch_size) {
    require(batch_ > 0, ErrorKind::Config, config.place("train_batch_size"),
            "train_batch_size: --search keeps it, and it is not given");
    Config flat = config;
    flat.parallel = {};
    flat.parallel.vocabulary = config.parallel.vocabulary;
    flat.train_micro_batch_size = 1;
    flat.gradient_accumulation_steps = batch_;
    flat_ = resolve(std::move(flat), 1);
    using Backend = ParallelConfig::Backend;
    flat_.parallel.backend = cluster.shares_memory ? Backend::Shm : Backend::Nccl;
  }

  ClusterSearch run() {
    for (const int tensor : divisors_of(cluster_.devices_per_host, cluster_.devices_per_host))
      if (can_share(tensor)) add_pipelines(tensor);
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return std::tuple(a.step_s, a.settings.tied()) < std::tuple(b.step_s, b.settings.tied());
    });
    choose();
    return std::move(result_);
  }

 private:
  bool can_share(int tensor) {
    Config config = flat_;
    config.parallel.tensor = tensor;
    try {
      parts_.emplace(tensor, part_of_(config, model_, tensor - 1));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Config) throw;
      return false;
    }
    return true;
  }

  void add_pipelines(int tensor) {
    const int others = cluster_.devices() / tensor;
    for (const int pipeline : divisors_of(others, flat_.model.layers)) {
      const int64_t dp = others / pipeline;
      if (batch_ % dp != 0) continue;
      for (int stage = 0; stage < kStages; ++stage) {
        Settings settings{.tensor = tensor, .pipeline = pipeline, .stage = stage};
        if (pipeline == 1) {
          add_batches(settings, batch_ / dp);
          continue;
        }
        for (const Kind kind : {Kind::OneFOneB, Kind::GPipe, Kind::ZbH1, Kind::ZbH2, Kind::Interleaved})
          for (const int chunks : kind == Kind::Interleaved ? std::vector{2, 3, 4} : std::vector{1}) {
            if (int64_t{pipeline} * chunks > flat_.model.layers) continue;
            settings.schedule = kind;
            settings.chunks = chunks;
            add_batches(settings, batch_ / dp);
          }
      }
    }
  }

  void add_batches(Settings settings, int64_t samples) {
    for (const int micro_batch : divisors_of(samples, kMostMicroBatch)) {
      settings.micro_batch = micro_batch;
      settings.micro_batches = samples / micro_batch;
      // Where ranks do not divide them an interleaved schedule's last round is no better than none.
      if (settings.schedule == Kind::Interleaved && settings.micro_batches % settings.pipeline != 0) continue;
      for (const bool recompute : {false, true}) {
        settings.recompute = recompute;
        add(settings);
      }
    }
  }

  void add(const Settings& settings) {
    ++result_.considered;
    Config& config = flat_;
    apply(settings, config);
    Ranks& ranks = ranks_of(settings);
    for (size_t i = 0; i < ranks.once.size(); ++i)
      if (bytes_of(config, settings, ranks, i) > cluster_.memory_bytes) {
        ++result_.too_large;
        return;
      }
    const PipelineRankPlan rank = with_micro_batches(ranks, ranks.heaviest, settings.micro_batches);
    StepWork work = work_of(config, rank, cluster_.devices(), rank.share);
    const StepLayout layout = layout_of(config, cluster_.devices());
    candidates_.push_back(
        {settings, time_of_step(cluster_, layout, work, /*exact_schedule=*/false).step_s()});
  }

  /// Traffic grows evenly with the micro-batches.
  static PipelineRankPlan with_micro_batches(const Ranks& ranks, size_t i, int64_t count) {
    if (count == 1) return ranks.once[i];
    PipelineRankPlan rank = ranks.twice[i];
    const auto grow = [&](int64_t RankPlan::*elements) {
      const int64_t one = ranks.once[i].plan.rank.*elements, two = ranks.twice[i].plan.rank.*elements;
      rank.plan.rank.*elements = one + (two - one) * (count - 1);
    };
    grow(&RankPlan::all_gather_elements);
    grow(&RankPlan::reduce_scatter_elements);
    grow(&RankPlan::all_reduce_elements);
    rank.plan.accumulation_steps = static_cast<int>(count);
    return rank;
  }

  int64_t bytes_of(const Config& config, const Settings& settings, const Ranks& ranks, size_t i) const {
    const PipelineRankPlan& rank = settings.micro_batches > 1 ? ranks.twice[i] : ranks.once[i];
    ActivationBytes bytes =
        activation_bytes(shape_of(config), settings.micro_batch, config.data.sequence_length,
                         *config.precision.param_dtype, config.recompute, layer_share_of(config));
    const double kept = settings.pipeline == 1 ? 1 : kept_by_formula(settings, i == 0);
    bytes.kept =
        static_cast<int64_t>(static_cast<double>(bytes.kept) * kept * static_cast<double>(rank.blocks) /
                             static_cast<double>(config.model.layers));
    if (!rank.has_last) bytes.loss = 0;
    return peak_bytes(rank.plan, bytes);
  }

  Ranks& ranks_of(const Settings& settings) {
    // The same for all schedules with as many stages.
    const auto key = std::tuple(settings.tensor, settings.pipeline, settings.chunks, settings.stage);
    const auto [at, is_new] = ranks_.try_emplace(key);
    if (is_new) at->second = make_ranks(settings);
    return at->second;
  }

  Ranks make_ranks(const Settings& settings) {
    const int stages = settings.pipeline * settings.chunks;
    const std::vector<int64_t> blocks = stage_blocks_of(flat_, model_, stages);
    const std::vector<std::vector<std::string>> patterns = stage_patterns(model_, blocks);
    const PartWeights weights = weights_of(flat_, model_);
    const double block = weights.blocks.front();
    double all = weights.last;
    for (const double one : weights.blocks) all += one;
    const RankPlaces places =
        dp_places_of(flat_, cluster_.devices(), cluster_.hosts, cluster_.devices_per_host);
    std::vector<int64_t> of_rank(static_cast<size_t>(settings.pipeline), 0);
    for (int stage = 0; stage < stages; ++stage)
      of_rank[static_cast<size_t>(stage % settings.pipeline)] += blocks[static_cast<size_t>(stage)];
    const int last = settings.pipeline - 1;
    const int fullest = static_cast<int>(std::max_element(of_rank.begin(), of_rank.end()) - of_rank.begin());
    Ranks ranks;
    for (const int rank : std::set{0, fullest, last}) {
      PipelineRankPlan one;
      one.blocks = of_rank[static_cast<size_t>(rank)];
      one.has_first = rank == 0;
      one.has_last = rank == last;
      const double operations = block * static_cast<double>(one.blocks) + (one.has_last ? weights.last : 0);
      one.share = operations * settings.pipeline / all;
      one.score_flops = 4 * static_cast<double>(one.blocks * flat_.data.sequence_length * flat_.model.width);
      one.product_flops = operations - one.score_flops;
      const ModuleSpec& own = tree_of(settings, patterns, rank);
      for (std::vector<PipelineRankPlan>* plans : {&ranks.once, &ranks.twice}) {
        EngineOptions options = options_from_config(flat_, places.ranks);
        options.reduce_once = settings.pipeline > 1;
        options.accumulation_steps = plans == &ranks.once ? 1 : 2;
        one.plan = make_plan(own, options, places, bytes_of_rule(flat_.optimizer.rule));
        plans->push_back(one);
      }
      if (one.share > ranks.once[ranks.heaviest].share) ranks.heaviest = ranks.once.size() - 1;
    }
    return ranks;
  }

  /// What a rank along the pipeline holds: the same at every stage of ZeRO.
  const ModuleSpec& tree_of(const Settings& settings, const std::vector<std::vector<std::string>>& patterns,
                            int rank) {
    if (patterns.size() == 1) return parts_.at(settings.tensor);
    const auto key = std::tuple(settings.tensor, settings.pipeline, settings.chunks, rank);
    const auto [at, is_new] = trees_.try_emplace(key);
    if (!is_new) return at->second;
    std::vector<std::string> held;
    for (size_t stage = static_cast<size_t>(rank); stage < patterns.size();
         stage += static_cast<size_t>(settings.pipeline))
      held.insert(held.end(), patterns[stage].begin(), patterns[stage].end());
    at->second = parts_.at(settings.tensor);
    keep_parameters(at->second, held);
    return at->second;
  }

  // Of each mesh and stage the first that this version runs and that fits when looked at closely.
  void choose() {
    std::map<std::tuple<int, int, int>, int> meshes;              // how often they were looked at
    std::map<std::tuple<bool, bool, bool, int, int>, bool> runs;  // kinds of settings
    int looked = 0;
    for (const Candidate& candidate : candidates_) {
      if (result_.best.size() == kBest || looked == kMostLooked) break;
      const Settings& s = candidate.settings;
      const auto mesh = std::tuple(s.tensor, s.pipeline, s.stage);
      if (meshes[mesh] >= kMostLookedOfMesh) continue;
      const auto kind =
          std::tuple(s.tensor > 1, s.pipeline > 1, s.recompute, s.stage, static_cast<int>(s.schedule));
      if (const auto known = runs.find(kind); known != runs.end() && !known->second) continue;
      ++looked;
      const std::optional<Config> config = resolved(s);
      runs[kind] = config.has_value();
      if (!config) continue;
      ClusterPrediction found = predict(*config, model_, parts_.at(s.tensor), cluster_);
      ++meshes[mesh];
      if (!found.fits()) continue;
      meshes[mesh] = kMostLookedOfMesh;
      result_.best.push_back(std::move(found));
    }
    std::stable_sort(result_.best.begin(), result_.best.end(),
                     [](const ClusterPrediction& a, const ClusterPrediction& b) {
                       return a.time.step_s() < b.time.step_s();
                     });
  }

  std::optional<Config> resolved(const Settings& settings) {
    Config config = given_;
    config.parallel.ranks = 0;
    config.parallel.shard_group_ranks = 0;
    config.data.sequence_length = flat_.data.sequence_length;
    apply(settings, config);
    try {
      return resolve(std::move(config), cluster_.devices());
    } catch (const Error& error) {
      const std::string reason = text_without_kind(error);
      if (std::find(result_.refused.begin(), result_.refused.end(), reason) == result_.refused.end())
        result_.refused.push_back(reason);
      return std::nullopt;
    }
  }

  const Config& given_;
  Config flat_;  // resolved; settings are tried in it
  const ModuleSpec& model_;
  const PartOf& part_of_;
  const Cluster& cluster_;
  const int64_t batch_;
  std::map<int, ModuleSpec> parts_;
  std::map<std::tuple<int, int, int, int>, Ranks> ranks_;
  std::map<std::tuple<int, int, int, int>, ModuleSpec> trees_;
  std::vector<Candidate> candidates_;
  ClusterSearch result_;
};

}  // namespace

ClusterSearch search_cluster(const Config& config, const ModuleSpec& model, const PartOf& part_of,
                             const Cluster& cluster) {
  return Searcher(config, model, part_of, cluster).run();
}

}  // namespace zero
