// Values, gradients and optimizer states of a parameter by name: what is written is read back, and training
// goes on as if it had always been so, at every stage, wherever its states are.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "optim/eight_bit.h"
#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

constexpr int64_t kWidth = 48;  // a shard has several blocks and pieces

struct Values {
  Values(const zero::Mesh& mesh, zero::EngineOptions options, int seed,
         const zero::OptimizerSpec& rule = zero::AdamW{.lr = 0.02})
      : engine([&] {
          torch::manual_seed(seed);
          model = SmallNet(29, kWidth, 2);
          options.group_numel = 200;
          return std::make_unique<zero::Engine>(*model, rule, options, mesh);
        }()),
        ranks(mesh.size()),
        rank(mesh.rank()) {}
  void backward(int number) {
    const Batch rows = batch_of(number, 2 * ranks).rows(2 * rank, 2);
    engine->backward(engine->forward([&] { return model->loss(rows.tokens, rows.targets); }));
  }
  void step(int number) {
    backward(number);
    EXPECT_FALSE(engine->step().skipped());
  }
  SmallNet model{nullptr};
  std::unique_ptr<zero::Engine> engine;
  int ranks, rank;
};

void expect_local_is_part(const zero::LocalValues& local, const Tensor& full, const std::string& what) {
  const Tensor part = full.flatten().narrow(0, local.begin, local.values.numel());
  EXPECT_TRUE(torch::equal(local.values, part)) << what;
}

/// What is on a disk: nothing, masters and optimizer states, or (stage 3) parameters and gradients too.
enum class OnDisk { nothing, states, all };
const char* name_of(OnDisk tier) {
  return tier == OnDisk::nothing ? "memory" : tier == OnDisk::states ? "states on disk" : "all on disk";
}

zero::EngineOptions placed(zero::EngineOptions options, OnDisk tier, const std::filesystem::path& path) {
  if (tier == OnDisk::nothing) return options;
  options.tiers = {.master = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
  if (tier == OnDisk::all) options.tiers.parameter = options.tiers.gradient = zero::Tier::Disk;
  options.offload = {.path = path, .buffer_count = 3, .piece_numel = 2048, .block_bytes = 4096};
  options.offload.step_in_backward = zero::StepInBackward::Off;  // gradients are there until step()
  return options;
}

/// use(options, what they are) for every stage and place.
template <class Use>
void at_every_place(const std::filesystem::path& path, Use use) {
  for (const OnDisk tier : {OnDisk::nothing, OnDisk::states, OnDisk::all})
    for (const int stage : {0, 1, 2, 3})
      if (tier != OnDisk::all || stage == 3)
        use(placed({.stage = stage}, tier, path),
            "stage " + std::to_string(stage) + ", " + name_of(tier) + ", ");
}

/// Every parameter and moment of `from` into `to`; full values and local ones in turn.
void copy_values(zero::Engine& from, zero::Engine& to, const std::string& what) {
  bool local = false;
  for (const std::string& name : from.parameter_names()) {
    const Tensor value = from.full_parameter(name);
    expect_local_is_part(from.local_parameter(name), value, what + name);
    if (local)
      to.set_local_parameter(name, from.local_parameter(name).values);
    else
      to.set_full_parameter(name, value);
    EXPECT_TRUE(torch::equal(to.full_parameter(name), value)) << what << name;
    for (const std::string kind : {"exp_avg", "exp_avg_sq"}) {
      const Tensor state = from.full_optimizer_state(name, kind);
      const zero::LocalValues part = from.local_optimizer_state(name, kind);
      expect_local_is_part(part, state, what + name);
      if (local)
        to.set_local_optimizer_state(name, kind, part.values);
      else
        to.set_full_optimizer_state(name, kind, state);
    }
    local = !local;
  }
}

void expect_same_parameters(zero::Engine& one, zero::Engine& other, const std::string& what) {
  for (const std::string& name : one.parameter_names())
    EXPECT_TRUE(torch::equal(other.full_parameter(name), one.full_parameter(name))) << what << name;
}

TEST(EngineValues, WhatIsWrittenIsWhatTrainingGoesOnWith) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    at_every_place(folder.path(), [&](zero::EngineOptions options, const std::string& what) {
      for (const auto dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
        options.dtype = dtype;
        Values from(mesh, options, 1), to(mesh, options, 2);
        for (int step = 0; step < 2; ++step) {
          from.step(step);
          to.step(step + 5);
        }
        copy_values(*from.engine, *to.engine, what);
        for (int step = 2; step < 4; ++step) {
          from.step(step);
          to.step(step);
        }
        expect_same_parameters(*from.engine, *to.engine, what);
      }
    });
  });
}

TEST(EngineValues, GradientsThatAreWrittenAreSteppedWith) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    at_every_place(folder.path(), [&](const zero::EngineOptions& options, const std::string& what) {
      Values from(mesh, options, 1), to(mesh, options, 1);
      from.backward(0);
      to.backward(7);
      bool local = false;
      for (const std::string& name : from.engine->parameter_names()) {
        const Tensor gradient = from.engine->full_gradient(name);
        const zero::LocalValues part = from.engine->local_gradient(name);
        expect_local_is_part(part, gradient, what + name);
        if (local)
          to.engine->set_local_gradient(name, part.values);
        else
          to.engine->set_full_gradient(name, gradient);
        EXPECT_TRUE(torch::equal(to.engine->full_gradient(name), gradient)) << what << name;
        local = !local;
      }
      from.engine->step();
      to.engine->step();
      expect_same_parameters(*from.engine, *to.engine, what);
    });
  });
}

/// Through 8 bits and back, blocks counted from the first element.
Tensor through_8bit(const Tensor& values, size_t moment) {
  const auto& map = zero::eight_bit::DynamicMap::of_moment(moment);
  const Tensor flat = values.contiguous(), result = torch::empty_like(flat);
  std::vector<uint8_t> codes(static_cast<size_t>(flat.numel()));
  std::vector<float> scales(static_cast<size_t>(zero::eight_bit::blocks_of(flat.numel())));
  zero::eight_bit::quantise(map, flat.const_data_ptr<float>(), codes.data(), scales.data(), flat.numel());
  zero::eight_bit::dequantise(map, codes.data(), scales.data(), result.mutable_data_ptr<float>(),
                              flat.numel());
  return result;
}

TEST(EngineValues, MomentsInEightBitsAreReadAndWrittenAsNumbers) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    at_every_place(folder.path(), [&](const zero::EngineOptions& options, const std::string& what) {
      const zero::AdamW rule{.lr = 0.02, .states_8bit = true};
      Values exact(mesh, options, 1), from(mesh, options, 1, rule), full(mesh, options, 2, rule),
          local(mesh, options, 3, rule);
      exact.step(0);
      for (Values* one : {&from, &full, &local}) one->step(0);
      for (const std::string& name : from.engine->parameter_names()) {
        full.engine->set_full_parameter(name, from.engine->full_parameter(name));
        local.engine->set_full_parameter(name, from.engine->full_parameter(name));
        for (const size_t moment : {size_t{0}, size_t{1}}) {
          const std::string kind = moment == 0 ? "exp_avg" : "exp_avg_sq";
          const Tensor state = from.engine->full_optimizer_state(name, kind);
          EXPECT_TRUE(
              torch::equal(state, through_8bit(exact.engine->full_optimizer_state(name, kind), moment)))
              << what << name << ", " << kind;
          const zero::LocalValues part = from.engine->local_optimizer_state(name, kind);
          expect_local_is_part(part, state, what + name);
          full.engine->set_full_optimizer_state(name, kind, state);
          local.engine->set_local_optimizer_state(name, kind, part.values);
          const Tensor expected = through_8bit(state, moment);
          EXPECT_TRUE(torch::equal(full.engine->full_optimizer_state(name, kind), expected)) << what << name;
          EXPECT_TRUE(torch::equal(local.engine->full_optimizer_state(name, kind), expected)) << what << name;
          EXPECT_GT(expected.abs().max().item<float>(), 0) << what << name;
        }
      }
      full.step(1);
      local.step(1);
      expect_same_parameters(*full.engine, *local.engine, what);
      EXPECT_ERROR(from.engine->full_optimizer_state("norm.weight", "exp_avg_scales"), Usage,
                   "is of blocks, not of elements");
    });
  });
}

TEST(EngineValues, RefusesWhatDoesNotFit) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    Values values(mesh, {.stage = 3}, 1);
    zero::Engine& engine = *values.engine;
    const Tensor before = engine.full_parameter("norm.weight");
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({kWidth + 1})), Usage,
                 "its new values have shape [49], expected [48]");
    EXPECT_ERROR(engine.set_full_parameter("norm.wait", torch::zeros({kWidth})), Usage, "no such parameter");
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({kWidth}, torch::kLong)), Usage,
                 "not floating-point");
    EXPECT_ERROR(engine.set_full_optimizer_state("norm.weight", "exp_max", torch::zeros({kWidth})), Usage,
                 "no optimizer state 'exp_max'");
    EXPECT_ERROR(engine.set_full_gradient("norm.weight", torch::zeros({kWidth})), Usage,
                 "between the last backward() and step()");
    const int64_t mine = engine.local_parameter("norm.weight").values.numel();
    EXPECT_ERROR(engine.set_local_parameter("norm.weight", torch::zeros({mine + 1})), Usage,
                 "what this rank holds of it");
    values.backward(0);
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({kWidth})), Usage,
                 "in the middle of a step");
    engine.abandon_pass();
    EXPECT_TRUE(torch::equal(engine.full_parameter("norm.weight"), before));
  });
}

}  // namespace
