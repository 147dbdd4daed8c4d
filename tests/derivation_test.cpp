// What `zero plan` says of a configuration, and what the engine of that configuration holds, are the same:
// random configurations on one, two and four ranks, on one host and on several.
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "sharding/sharded_model.h"
#include "support/ranks.h"
#include "support/same_plans.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/language_model.h"
#include "zero/lazy.h"
#include "zero/model_shape.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using nlohmann::json;

struct Place {
  int ranks, hosts;
  const char* backend;
  std::string name() const {
    return std::to_string(ranks) + " ranks on " + std::to_string(hosts) + " hosts by " + backend;
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t from(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool flip() { return from(0, 1) == 1; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 random_;
};

json random_model(Draw& draw) {
  const int64_t heads = draw.from(1, 3);
  json model{{"vocab_size", draw.from(5, 40)},
             {"context_length", draw.from(2, 8)},
             {"layers", draw.from(1, 3)},
             {"width", heads * 2 * draw.from(1, 3)},
             {"heads", heads}};
  const auto type = draw.one_of<const char*>({"gpt2", "llama", "gpt_neox"});
  model["type"] = type;
  if (type != std::string("gpt2")) model["mlp_width"] = draw.from(3, 20);
  if (type == std::string("gpt_neox")) model["rotary_fraction"] = 1;  // a quarter of these heads is odd
  return model;
}

json random_optimizer(Draw& draw) {
  const auto type = draw.one_of<const char*>(
      {"AdamW", "Adam", "SGD", "Lion", "LAMB", "LARS", "Adagrad", "Muon", "Adafactor"});
  json params{{"lr", 0.01}};
  if (type == std::string("SGD")) params["momentum"] = draw.flip() ? 0.9 : 0;
  return {{"type", type}, {"params", params}};
}

// Every key that decides how a run is cut up and what travels.
json random_config(Draw& draw, const Place& place) {
  const int64_t stage = draw.from(0, 3);
  json zero{{"stage", stage}, {"reduce_bucket_size", draw.one_of<int64_t>({1, 7, 100, 5000, 16777216})}};
  if (draw.flip()) zero["overlap_comm"] = draw.flip();
  if (draw.from(0, 3) == 0) zero["stage3_prefetch_bucket_size"] = draw.from(0, 3000);
  if (draw.from(0, 3) == 0) zero["stage3_max_live_parameters"] = draw.from(0, 3000);
  json residency{
      {"share", draw.from(0, 2) > 0}, {"split_master", draw.flip()}, {"group_numel", draw.from(1, 600)}};
  if (draw.flip()) residency["budget"] = draw.from(0, 9000);
  if (draw.flip()) residency["prefetch"] = draw.from(0, 9000);
  json parallel{{"backend", place.backend}};
  const int64_t group = draw.one_of<int64_t>({1, 2, 4});
  if (stage > 0 && draw.flip() && place.ranks % group == 0) parallel["shard_group"] = group;
  json types{{"grad_accum_dtype", draw.one_of<const char*>({"fp32", "fp32", "bf16"})}};
  json config{{"train_micro_batch_size_per_gpu", 1},
              {"gradient_accumulation_steps", draw.one_of<int64_t>({1, 1, 2, 5})},
              {"bf16", {{"enabled", draw.flip()}}},
              {"data_types", types},
              {"zero_optimization", zero},
              {"residency", residency},
              {"parallel", parallel},
              {"optimizer", random_optimizer(draw)},
              {"model", random_model(draw)}};
  if (draw.from(0, 3) == 0) config["communication_data_type"] = draw.one_of<const char*>({"fp32", "bf16"});
  if (draw.flip()) config["gradient_predivide_factor"] = draw.one_of<double>({0.5, 2, 3});
  if (draw.from(0, 3) == 0) config["prescale_gradients"] = true;
  if (draw.from(0, 3) == 0) config["cpu_operators"] = false;
  if (draw.from(0, 3) == 0)
    config["frozen"] = draw.one_of<json>({json{"*.bias", "*norm*.weight"}, json{"*0*"}, json{"*weight"}});
  return config;
}

// The configurations are drawn alike on every rank; those that freeze everything, or match nothing, are drawn
// again without that.
Config config_of(Draw& draw, const Place& place) {
  json text = random_config(draw, place);
  try {
    const Config config = resolve(parse_config(text.dump(), "drawn"), place.ranks);
    trained_spec(config);
    return config;
  } catch (const Error&) {
    text.erase("frozen");
    return resolve(parse_config(text.dump(), "drawn"), place.ranks);
  }
}

int64_t nbytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Not what the engine plans but what it has: tensors, groups and types.
void expect_held(const Plan& said, detail::ShardedModel& model) {
  EXPECT_EQ(model.shard_group.size(), said.shard_ranks);
  EXPECT_EQ(model.replica_group.size(), said.replica_ranks);
  EXPECT_EQ(model.common_group.size(), said.common_ranks);
  int64_t parameters = 0, shards = 0, masters = 0, gradients = 0, states = 0;
  const auto lent = [&](const detail::Unit& unit, std::string_view kind) {
    return model.states.lend(unit.index, {kind}, StateStore::Use::Read)[kind];
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    const detail::Unit& unit = model.units[u];
    EXPECT_EQ(unit.common.defined(),
              said.placements.parameter == Placement::Common && unit.layout.padded_numel > 0);
    const bool whole = unit.full.defined() && !unit.common.defined();
    if (unit.common.defined())
      parameters += nbytes_of(unit.common) / said.common_ranks;
    else
      parameters += nbytes_of(whole ? unit.full : lent(unit, kParameterState));
    if (!unit.shard_is_slice) shards += nbytes_of(lent(unit, kParameterState));
    EXPECT_EQ(unit.shard_is_slice, unit.full.defined());
    if (!unit.layout.trainable) continue;
    if (unit.has_own_master()) masters += nbytes_of(lent(unit, kMasterState));
    for (const std::string& name : model.optimizer->state_names()) states += nbytes_of(lent(unit, name));
    for (const std::string_view name : {"exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_sq"})
      if (said.units[u].factored_numel > 0 && model.states.holds(unit.index, name))
        states += nbytes_of(lent(unit, name));
    const at::Tensor gradient = lent(unit, kGradientState);
    EXPECT_EQ(dtype_of(gradient.scalar_type()), said.accumulation_dtype);
    gradients += static_cast<int64_t>(gradient.storage().nbytes());
  }
  EXPECT_EQ(model.states.owned_bytes(), shards + masters + gradients + states);
  EXPECT_EQ(parameters, said.rank.parameter_bytes);
  EXPECT_EQ(masters, said.rank.master_bytes);
  EXPECT_EQ(gradients, said.rank.gradient_bytes);
  EXPECT_EQ(states, said.rank.optimizer_bytes);
}

void compare(const Config& config, const Place& place, const Mesh& mesh) {
  const Plan said = plan_from_config(config, trained_spec(config), place.ranks, {}, place.hosts)
                        .stages[static_cast<size_t>(config.zero.stage)];
  const auto module = lazily([&] { return make_language_model(shape_of(config)); });
  freeze(*module, config);
  detail::ShardedModel model(detail::parameters_of(*module), optimizer_of(config),
                             engine_options_of(config, place.ranks), mesh);
  testing::expect_same(said, model.plan);
  expect_held(said, model);
}

// What the draws must have met, or equality says little.
struct Met {
  std::set<std::string> kinds;
  void add(const Plan& plan) {
    kinds.insert("parameters " + std::string(to_string(plan.placements.parameter)));
    kinds.insert("wire " + std::string(to_string(plan.communication_dtype)));
    if (plan.shard_ranks > 1 && plan.replica_ranks > 1) kinds.insert("hybrid");
    if (plan.split_master()) kinds.insert("split masters");
    if (plan.gradient_predivide_factor != 1) kinds.insert("divided before");
    if (plan.reduce_bucket_numel == 2 << 20) kinds.insert("buckets of shared memory");
  }
};

void compare_many(const Place& place, int count, const Mesh& mesh) {
  Draw draw(static_cast<uint64_t>(place.ranks * 10 + place.hosts));
  Met met;
  for (int i = 0; i < count; ++i) {
    const Config config = config_of(draw, place);
    SCOPED_TRACE(place.name() + ": " + to_json(config));
    compare(config, place, mesh);
    met.add(plan_from_config(config, trained_spec(config), place.ranks, {}, place.hosts)
                .stages[static_cast<size_t>(config.zero.stage)]);
    if (::testing::Test::HasFailure()) return;
  }
  std::set<std::string> expected{"parameters sharded", "wire fp32", "wire bf16", "split masters",
                                 "divided before"};
  const bool shares = place.ranks / place.hosts > 1 && place.backend != std::string("gloo");
  if (shares) expected.insert({"parameters common", "buckets of shared memory"});
  if (place.hosts > 1 || !shares) expected.insert("parameters replicated");
  if (place.ranks > 2) expected.insert("hybrid");
  EXPECT_TRUE(std::includes(met.kinds.begin(), met.kinds.end(), expected.begin(), expected.end()))
      << place.name();
}

class Derivation : public ::testing::TestWithParam<Place> {};

TEST_P(Derivation, ThePlanOfAConfigurationIsWhatItsEngineHolds) {
  const Place place = GetParam();
  constexpr int kConfigurations = 80;  // of each place: 560 together
  const auto results = testing::collect_processes(place.ranks, [&](Rendezvous rendezvous) {
    MeshOptions options;
    options.timeout = std::chrono::seconds(30);
    options.transport = place.backend;
    options.host = "host " + std::to_string(rendezvous.rank / (place.ranks / place.hosts));
    compare_many(place, kConfigurations, Mesh::join(rendezvous, options));
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.error, "");
    for (const auto& failure : result.failures) ADD_FAILURE() << failure;
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Derivation,
                         ::testing::Values(Place{1, 1, "auto"}, Place{2, 1, "auto"}, Place{2, 2, "auto"},
                                           Place{4, 1, "auto"}, Place{4, 2, "auto"}, Place{4, 4, "auto"},
                                           Place{4, 1, "gloo"}));

}  // namespace
}  // namespace zero
