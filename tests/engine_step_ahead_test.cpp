// Units whose states are on disk are updated while backward goes on with others: the same bits as after it,
// whatever happens between a gradient that is final and the step.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <thread>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;
using torch::Tensor;

constexpr int64_t kAheadWords = 53, kAheadWidth = 40;
constexpr int kAheadBlocks = 3, kAheadRows = 12;

/// What a step does beside the usual.
struct StepPlan {
  int skipped_block = -1;    // its parameters have no gradient
  bool runs_twice = false;   // the first block, each time with a backward of its own
  bool is_infinite = false;  // the embedding's gradient, which comes last
};

/// A block whose backward is one inside backward, as checkpoints of old have it: when it runs twice, its
/// parameters' gradients come twice.
struct Inner : torch::autograd::Function<Inner> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, Block block) {
    context->save_for_backward({x});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block.ptr().get());
    return block->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode on(true);
    Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto* const block = reinterpret_cast<BlockImpl*>(context->saved_data["block"].toInt());
    torch::autograd::backward({block->forward(x)}, {gradients[0]});
    return {x.grad(), Tensor()};
  }
};

/// Blocks, an embedding, and an output layer that ties nothing.
struct WordNetImpl : torch::nn::Module {
  WordNetImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(kAheadWords, kAheadWidth))),
        layers(register_module("layers", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(kAheadWidth, kAheadWords))) {
    for (int i = 0; i < kAheadBlocks; ++i) layers->push_back(Block(kAheadWidth));
    // Whatever the disk is slow at is there by now.
    embedding->weight.register_hook([this](const Tensor& gradient) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      return plan.is_infinite ? gradient * std::numeric_limits<float>::infinity() : gradient;
    });
  }
  Tensor loss(const Batch& batch) {
    Tensor x = embedding(batch.tokens);
    for (int i = 0; i < kAheadBlocks; ++i) {
      if (i == plan.skipped_block) {
        x = x + layers[static_cast<size_t>(i)]->as<BlockImpl>()->forward(x).detach();
        continue;
      }
      if (!plan.runs_twice || i > 0) {
        x = layers[static_cast<size_t>(i)]->as<BlockImpl>()->forward(x);
        continue;
      }
      Block first(std::dynamic_pointer_cast<BlockImpl>(layers->ptr(0)));
      for (int time = 0; time < 2; ++time) x = Inner::apply(x, first);
    }
    return torch::nn::functional::cross_entropy(head(x).flatten(0, -2).to(torch::kFloat),
                                                batch.targets.flatten());
  }
  StepPlan plan;
  torch::nn::Embedding embedding;
  torch::nn::ModuleList layers;
  torch::nn::Linear head;
};
TORCH_MODULE(WordNet);

zero::EngineOptions in_pieces(zero::EngineOptions options, const fs::path& path,
                              zero::StepInBackward ahead = zero::StepInBackward::On) {
  options.tiers = {.master = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
  options.offload = {.path = path, .buffer_count = 16, .piece_numel = 2048, .block_bytes = 4096};
  options.offload.step_in_backward = ahead;
  return options;
}

struct Words {
  Words(const zero::Mesh& job, const zero::OptimizerSpec& rule, const zero::EngineOptions& options)
      : mesh(job), model((torch::manual_seed(3), WordNet())), engine(*model, rule, options, job) {}
  /// One micro-batch.
  void backward(int number) {
    const int each = kAheadRows / mesh.size();
    const Batch batch = batch_of(number, kAheadRows, kAheadWords).rows(mesh.rank() * each, each);
    engine.backward(engine.forward([&] { return model->loss(batch); }));
  }
  zero::StepResult step(int number, int micro_batches = 1, const StepPlan& plan = {}) {
    model->plan = plan;
    for (int i = 0; i < micro_batches; ++i) backward(number * micro_batches + i);
    model->plan = {};
    return engine.step();
  }
  int64_t ahead() const { return engine.stats().disk.pieces_ahead; }
  zero::Mesh mesh;
  WordNet model;
  zero::Engine engine;
};

void expect_equal_saves(Words& a, Words& b, const fs::path& folder, const std::string& what) {
  const fs::path one = a.engine.save(folder / what / "a"), two = b.engine.save(folder / what / "b");
  if (a.mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(one), read_all(two))) << what;
  }
  a.mesh.world().barrier("compared");
}

/// `run` on an engine in memory and on one that updates ahead: the same bits.
void compare(const zero::Mesh& mesh, const fs::path& folder, const std::string& what,
             const zero::EngineOptions& options, const zero::OptimizerSpec& rule,
             const std::function<void(Words&)>& run) {
  Words memory(mesh, rule, options), ahead(mesh, rule, in_pieces(options, folder));
  EXPECT_EQ(ahead.engine.plan().rank.file_bytes % 2, 0);
  run(memory);
  run(ahead);
  expect_equal_saves(memory, ahead, folder, what);
  EXPECT_EQ(memory.engine.stats().skipped_steps, ahead.engine.stats().skipped_steps);
  EXPECT_EQ(memory.ahead(), 0);
  if (mesh.size() == 1) {
    EXPECT_GT(ahead.ahead(), 0) << what;
  }
}

class StepAhead : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StepAhead, ::testing::Values(1, 2, 3));

TEST_P(StepAhead, ChangesNoBit) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (int stage = 0; stage <= 3; ++stage)
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
        for (const int micro_batches : {1, 2}) {
          zero::EngineOptions options{.stage = stage, .dtype = dtype, .accumulation_steps = micro_batches};
          options.group_numel = 300;
          options.schedule = zero::LrSchedule(zero::LinearLr{.warmup_steps = 2, .total_steps = 9});
          options.groups = {{.pattern = "*bias", .lr_scale = 0.5, .weight_decay = 0}};
          const std::string what = "stage " + std::to_string(stage) + ", " + c10::toString(dtype) + ", " +
                                   std::to_string(micro_batches);
          compare(mesh, folder.path(), what, options, zero::AdamW{.lr = 1e-2}, [&](Words& run) {
            for (int step = 0; step < 3; ++step) run.step(step, micro_batches);
            const fs::path saved = run.engine.save(folder.path() / what / "middle");
            run.step(3, micro_batches);
            run.engine.load(saved);
            for (int step = 3; step < 5; ++step) run.step(step, micro_batches);
          });
        }
  });
}

TEST_P(StepAhead, AStepThatIsSkippedNeverWas) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const int stage : {0, 3})
      compare(mesh, folder.path(), "stage " + std::to_string(stage), {.stage = stage, .dtype = at::kBFloat16},
              zero::AdamW{.lr = 1e-2}, [&](Words& run) {
                for (int step = 0; step < 5; ++step) {
                  // One rank's is enough.
                  const bool infinite = step == 2 && run.mesh.rank() == run.mesh.size() - 1;
                  EXPECT_EQ(run.step(step, 1, {.is_infinite = infinite}).skipped(), step == 2);
                }
              });
  });
}

TEST_P(StepAhead, ParametersWithoutAGradientOnSomeRanksAreAgreedUponFirst) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const int stage : {1, 2})  // elsewhere ranks must run the same units
      compare(mesh, folder.path(), "stage " + std::to_string(stage), {.stage = stage, .dtype = at::kBFloat16},
              zero::AdamW{.lr = 1e-2}, [&](Words& run) {
                for (int step = 0; step < 6; ++step) {
                  const bool skips = step % 3 == 2 || (step % 3 == 1 && run.mesh.rank() == 0);
                  run.step(step, 1, {.skipped_block = skips ? 1 : -1});
                }
              });
  });
}

TEST_P(StepAhead, GradientsThatComeInTwoPartsCountWhole) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const int stage : {0, 3})
      compare(mesh, folder.path(), "stage " + std::to_string(stage), {.stage = stage},
              zero::AdamW{.lr = 1e-2}, [&](Words& run) {
                for (int step = 0; step < 6; ++step) run.step(step, 1, {.runs_twice = step % 3 != 0});
              });
  });
}

TEST_P(StepAhead, GradientsOnDiskThatSomeRanksLackWaitForTheStep) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const int micro_batches : {1, 2})
      for (const int stage : {1, 2}) {
        const zero::EngineOptions options{
            .stage = stage, .dtype = at::kBFloat16, .accumulation_steps = micro_batches};
        zero::EngineOptions on_disk = in_pieces(options, folder.path());
        on_disk.tiers.gradient = zero::Tier::Disk;
        Words memory(mesh, zero::AdamW{.lr = 1e-2}, options), ahead(mesh, zero::AdamW{.lr = 1e-2}, on_disk);
        for (Words* const run : {&memory, &ahead})
          for (int step = 0; step < 6; ++step) {
            const bool skips = step % 3 == 2 || (step % 3 == 1 && mesh.rank() == 0);
            run->step(step, micro_batches, {.skipped_block = skips ? 1 : -1});
          }
        expect_equal_saves(memory, ahead, folder.path(),
                           std::to_string(stage) + ", " + std::to_string(micro_batches));
      }
  });
}

TEST(StepAheadAlone, AGradientThatComesInPartsCannotBeUsedUp) {
  const DiskDirectory folder;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    zero::EngineOptions options = in_pieces({.stage = 3}, folder.path());
    options.tiers.gradient = zero::Tier::Disk;
    Words run(mesh, zero::AdamW{}, options);
    run.step(0);
    EXPECT_ERROR(run.step(1, 1, {.runs_twice = true}), Usage, "this model gives gradients in parts");
    run.model->plan = {};
    run.step(2);
  });
}

TEST_P(StepAhead, WhatIsAskedOrChangedBetweenBackwardAndStepIsSeen) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      compare(mesh, folder.path(), c10::toString(dtype), {.stage = 3, .dtype = dtype},
              zero::AdamW{.lr = 1e-2}, [&](Words& run) {
                const std::string name = "layers.1.up.weight";
                run.step(0);
                run.backward(1);
                run.engine.set_learning_rate(5e-3);
                run.engine.step();

                run.backward(2);
                const Tensor before = run.engine.full_parameter(name);
                EXPECT_TRUE(run.engine.full_gradient(name).abs().max().item<float>() > 0);
                run.engine.full_optimizer_state(name, "exp_avg");
                EXPECT_TRUE(torch::equal(before, run.engine.full_parameter(name)));
                run.engine.step();
                EXPECT_FALSE(torch::equal(before, run.engine.full_parameter(name)));

                run.backward(3);
                {
                  const std::vector<std::string> names{"layers.2"};
                  zero::GatherScope scope(run.engine, names, zero::Access::Modify);
                  const torch::NoGradGuard no_grad;
                  for (Tensor& parameter : run.model->layers[2]->parameters()) parameter.mul_(0.5);
                }
                run.engine.step();

                run.backward(4);
                run.engine.abandon_pass();
                run.step(5);
              });
  });
}

TEST(StepAheadAlone, ValuesWrittenByHandBetweenBackwardAndStepAreKept) {
  const DiskDirectory folder;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    compare(mesh, folder.path(), "by hand", {.stage = 0}, zero::AdamW{.lr = 1e-2}, [&](Words& run) {
      for (int step = 0; step < 4; ++step) {
        run.backward(step);
        if (step == 2) {
          const torch::NoGradGuard no_grad;
          for (Tensor& parameter : run.model->layers[1]->parameters()) parameter.mul_(0.5);
        }
        run.engine.step();
      }
    });
  });
}

TEST(StepAheadAlone, EveryRuleThatUpdatesElementsAndEverySizeOfRing) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const std::vector<zero::OptimizerSpec> rules{
        zero::Adam{.lr = 1e-2}, zero::SGD{.lr = 1e-2, .momentum = 0.9}, zero::Lion{.lr = 1e-3},
        zero::AdamW{.lr = 1e-2, .states_8bit = true}};
    for (size_t i = 0; i < rules.size(); ++i) {
      const zero::EngineOptions options{.stage = 3, .dtype = at::kBFloat16};
      Words memory(mesh, rules[i], options);
      zero::EngineOptions small = in_pieces(options, folder.path());
      small.offload.buffer_count = 2;
      Words ahead(mesh, rules[i], small);
      for (int step = 0; step < 4; ++step) {
        memory.step(step);
        ahead.step(step);
      }
      expect_equal_saves(memory, ahead, folder.path(), "rule " + std::to_string(i));
    }
  });
}

TEST(StepAheadAlone, AFailedBackwardLeavesNothing) {
  const DiskDirectory folder;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    bool fails = false;
    compare(mesh, folder.path(), "failed", {.stage = 3, .dtype = at::kBFloat16}, zero::AdamW{.lr = 1e-2},
            [&](Words& run) {
              run.model->embedding->weight.register_hook([&](const Tensor& gradient) {
                if (fails) throw std::runtime_error("as asked");
                return gradient;
              });
              for (int step = 0; step < 4; ++step) {
                fails = step == 2;
                if (fails) {
                  EXPECT_THROW(run.backward(9), std::exception);
                }
                fails = false;
                run.step(step);
              }
            });
  });
}

TEST(StepAheadAlone, IsRefusedWhereTheStepWaitsForAllGradients) {
  const DiskDirectory folder;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    const auto make = [&](zero::EngineOptions options, const zero::OptimizerSpec& rule) {
      WordNet model;
      const zero::Engine engine(*model, rule, options, mesh);
      EXPECT_FALSE(engine.plan().step_in_backward);
    };
    const zero::EngineOptions clipped{.gradient_clipping = 1};
    EXPECT_ERROR(make(in_pieces(clipped, folder.path()), zero::AdamW{}), Config,
                 "offload.step_in_backward: units cannot be updated in backward: gradient_clipping");
    EXPECT_ERROR(make(in_pieces({}, folder.path()), zero::LAMB{}), Config, "every element by itself");
    EXPECT_ERROR(make(in_pieces({}, folder.path()), zero::Muon{}), Config, "every element by itself");
    make(in_pieces(clipped, folder.path(), zero::StepInBackward::Auto), zero::AdamW{});
    make(in_pieces({}, folder.path(), zero::StepInBackward::Auto), zero::LAMB{});
    make(in_pieces({}, folder.path(), zero::StepInBackward::Auto), zero::Muon{});
    make(in_pieces({}, folder.path(), zero::StepInBackward::Off), zero::AdamW{});
  });
}

}  // namespace
