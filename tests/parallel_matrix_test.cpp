// Data, tensor, sequence and pipeline parallelism together, at every ZeRO stage: losses, norms and parameters
// are those of one process, and a checkpoint of any mesh is one of any other.
#include <ATen/ops/allclose.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/transport.h"
#include "plan/stage_balance.h"
#include "support/late_transport.h"
#include "support/named_tensors.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "train/model_stages.h"
#include "zero/checkpoint.h"
#include "zero/gpt2.h"
#include "zero/gpt_neox.h"
#include "zero/language_model_plan.h"
#include "zero/lazy.h"
#include "zero/llama.h"
#include "zero/pipeline.h"

namespace {

using namespace zero::testing;
using zero::Mesh;
using zero::Pipeline;
using zero::StageTensors;

constexpr int64_t kWords = 53, kRows = 4, kPositions = 9, kLayers = 5;

zero::Gpt2Shape gpt2(double dropout = 0) {
  return {.vocab_size = kWords,
          .context_length = 12,
          .layers = kLayers,
          .width = 20,
          .heads = 4,
          .dropout = dropout};
}

const zero::LlamaShape kLlama{.vocab_size = kWords,
                              .context_length = 12,
                              .layers = kLayers,
                              .width = 20,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_width = 6,
                              .mlp_width = 27};
const zero::GptNeoxShape kNeox{.vocab_size = kWords,
                               .context_length = 12,
                               .layers = kLayers,
                               .width = 24,
                               .heads = 4,
                               .mlp_width = 45,
                               .rotary_fraction = 0.7};

zero::ModelShape shape_named(const std::string& model) {
  if (model == "gpt2") return gpt2();
  if (model == "gpt2 that drops") return gpt2(0.2);
  return model == "llama" ? zero::ModelShape(kLlama) : zero::ModelShape(kNeox);
}

/// Everything that makes a run.
struct Case {
  std::string model;
  int dp, tp, pp;
  int stage;
  std::string schedule = "1f1b";
  bool sequence = false;
  int micro_batches = 1;
  bool bf16 = false;
  // Norms and the embedding (of Llama, the head) fp32 beside bf16, or LibTorch's autocast to bf16.
  enum class Types { One, SomeFp32, Autocast } types = Types::One;

  int ranks() const { return dp * tp * pp; }
  // Roundings of bf16 grow with every step.
  int steps() const { return bf16 ? 4 : 10; }
};

std::string name_of(const Case& one) {
  return one.model + ", d" + std::to_string(one.dp) + " t" + std::to_string(one.tp) + " p" +
         std::to_string(one.pp) + ", stage " + std::to_string(one.stage) + ", " + one.schedule +
         (one.sequence ? ", sequence" : "") + ", " + std::to_string(one.micro_batches) + " micro-batches" +
         (one.bf16 ? ", bf16" : "") +
         (one.types == Case::Types::SomeFp32   ? ", some fp32"
          : one.types == Case::Types::Autocast ? ", autocast"
                                               : "");
}

RankOptions mesh_of(const Case& one) {
  RankOptions options;
  options.mesh.axes = {{"pp", one.pp}, {"dp", one.dp}, {"tp", one.tp}};
  return options;
}

// Where gradients are rounding errors (a key's bias) steps must be, too.
zero::AdamW optimizer() { return {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1}; }

struct Rows {
  at::Tensor tokens, targets;
  Rows(int step, int micro_batch, const zero::Group& dp) {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * step + micro_batch));
    const int64_t rows = kRows / dp.size();
    const auto draw = [&] {
      return at::randint(0, kWords, {kRows, kPositions}, generator, at::kLong)
          .narrow(0, rows * dp.rank(), rows);
    };
    tokens = draw();
    targets = draw();
  }
};

/// A model on its mesh.
struct Trained {
  Trained(const Case& one, const Mesh& the_mesh) : mesh(the_mesh), micro_batches(one.micro_batches) {
    const zero::ModelShape shape = shape_named(one.model);
    torch::manual_seed(3);
    model = zero::lazily([&] { return zero::make_language_model(shape); });
    parallel = zero::parallelize(*model, zero::tensor_parallel_plan(*model, shape, one.tp), mesh,
                                 {.sequence = one.sequence});
    zero::EngineOptions options{.stage = one.stage, .gradient_clipping = 0.5};
    if (one.bf16 && one.types != Case::Types::Autocast) options.dtype = torch::kBFloat16;
    if (one.types == Case::Types::SomeFp32)
      options.fp32_parameters = {"*norm*", one.model == "gpt2" ? "wte.*" : "*lm_head*"};
    if (one.model == "gpt2" && one.types == Case::Types::SomeFp32) options.fp32_parameters[0] = "*ln_*";
    if (one.types == Case::Types::Autocast) options.autocast = torch::kBFloat16;
    parallel.add_to(options);
    const int chunks = one.schedule == "interleaved" || one.schedule == "zb-v" ? 2 : 1;
    const std::vector<int64_t> blocks =
        zero::balance_stages({.last = 0.5, .blocks = std::vector<double>(kLayers, 1)}, one.pp * chunks);
    pipeline = std::make_unique<Pipeline>(
        *model, zero::training::stages_of_model(model, blocks, [this](int micro) { seed(micro); }),
        optimizer(), options,
        zero::PipelineOptions{.micro_batches = one.micro_batches, .schedule = one.schedule}, mesh);
    model->train();
  }

  // What is dropped follows from step and micro-batch.
  void seed(int micro) {
    if (trouble) trouble(micro);
    model->set_dropout_seed(static_cast<uint64_t>(1000 * step_number + micro));
  }

  /// The mean loss of all rows, and the norm.
  std::pair<double, double> step() {
    const zero::Group dp = mesh.group("dp");
    at::Tensor losses =
        pipeline->train([&](int i) { return StageTensors{Rows(step_number, i, dp).tokens}; },
                        [&](const StageTensors& out, int i) {
                          return model->last_part_loss(out.at(0), Rows(step_number, i, dp).targets);
                        });
    dp.all_reduce(losses, zero::Group::Reduce::Sum, "loss").wait();
    ++step_number;
    return {losses.mean().item<double>() / dp.size(), pipeline->step().clip().norm_before};
  }

  bool is_first_holder() const { return mesh.group("dp").rank() == 0 && mesh.group("tp").rank() == 0; }

  /// All parameters that ranks hold, whole.
  void hand_back_parameters() {
    for (const std::string& name : pipeline->engine().parameter_names()) {
      const at::Tensor whole = parallel.whole_of(name, pipeline->engine().full_parameter(name));
      if (is_first_holder()) hand_back_named(name, whole);
    }
  }

  Mesh mesh;
  int micro_batches;
  std::shared_ptr<zero::LanguageModel> model;
  zero::TensorParallel parallel;
  std::unique_ptr<Pipeline> pipeline;
  int step_number = 0;
  std::function<void(int micro)> trouble;  // in each stage's forward
};

using Values = std::map<std::string, std::string>;

Values course_of(const Case& one, const RankOptions& options) {
  return named_of(run_ranks(
      one.ranks(),
      [&](const Mesh& mesh) {
        Trained trained(one, mesh);
        std::vector<double> losses, norms;
        for (int step = 0; step < one.steps(); ++step) {
          const auto [loss, norm] = trained.step();
          losses.push_back(loss);
          norms.push_back(norm);
        }
        if (mesh.rank() == 0) {
          hand_back_named("losses", torch::tensor(losses, torch::kDouble));
          hand_back_named("norms", torch::tensor(norms, torch::kDouble));
        }
        trained.hand_back_parameters();
        const zero::TensorParallelReport report = trained.parallel.report();
        EXPECT_TRUE(report.gathered.empty()) << name_of(one) << " " << report.gathered.begin()->first;
      },
      options));
}

Values course_of(const Case& one) { return course_of(one, mesh_of(one)); }

/// One process, of as many micro-batches.
const Values& course_alone(const Case& one) {
  static std::map<std::string, Values> courses;
  const Case alone{.model = one.model,
                   .dp = 1,
                   .tp = 1,
                   .pp = 1,
                   .stage = 0,
                   .micro_batches = one.micro_batches,
                   .bf16 = one.bf16,
                   .types = one.types};
  const auto [found, is_new] = courses.try_emplace(name_of(alone));
  if (is_new) found->second = course_of(alone);
  return found->second;
}

void expect_near(const Values& found, const Values& expected, const Case& one) {
  ASSERT_EQ(found.size(), expected.size()) << name_of(one);
  for (const auto& [name, bytes] : expected) {
    const bool is_course = name == "losses" || name == "norms";
    const auto dtype = is_course ? at::kDouble : at::kFloat;
    ASSERT_TRUE(found.contains(name)) << name_of(one) << " " << name;
    const at::Tensor value = tensor_from_bytes(found.at(name), dtype),
                     wanted = tensor_from_bytes(bytes, dtype);
    const double near = one.bf16 ? (is_course ? 3e-2 : 5e-2) : (is_course ? 1e-5 : 1e-4);
    EXPECT_TRUE(at::allclose(value, wanted, near, one.bf16 ? 5e-2 : 1e-5))
        << name_of(one) << " " << name << ", off by " << (value - wanted).abs().max().item<double>();
  }
}

class ParallelMatrix : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Meshes, ParallelMatrix,
    ::testing::Values(
        // Tensor and pipeline ranks alone, every schedule.
        Case{"gpt2", 1, 2, 2, 0, "1f1b", false, 4}, Case{"gpt2", 1, 2, 2, 1, "gpipe", true, 4},
        Case{"llama", 1, 2, 2, 3, "zb-h1", true, 4}, Case{"neox", 1, 2, 2, 2, "interleaved", false, 4},
        Case{"gpt2", 1, 2, 2, 3, "zb-v", true, 4}, Case{"llama", 1, 2, 2, 0, "search", false, 4},
        Case{"neox", 1, 2, 2, 1, "zb-h2", true, 1}, Case{"llama", 1, 4, 2, 2, "1f1b", true, 4},
        Case{"gpt2", 1, 2, 4, 3, "zb-h1", true, 1},
        // All axes, every stage.
        Case{"gpt2", 2, 2, 2, 0, "zb-h1", true, 4}, Case{"gpt2", 2, 2, 2, 1, "1f1b", false, 1},
        Case{"llama", 2, 2, 2, 2, "zb-v", true, 4}, Case{"llama", 2, 2, 2, 3, "1f1b", false, 4},
        Case{"neox", 2, 2, 2, 3, "interleaved", true, 4}, Case{"neox", 2, 2, 2, 2, "gpipe", false, 1},
        // Two axes.
        Case{"llama", 2, 4, 1, 3, "1f1b", true, 4}, Case{"gpt2", 4, 1, 2, 3, "zb-h1", false, 4},
        // Types, and what is dropped.
        Case{"gpt2", 2, 2, 2, 3, "1f1b", true, 4, true}, Case{"llama", 1, 2, 2, 1, "zb-v", false, 4, true},
        Case{"gpt2", 1, 2, 2, 3, "1f1b", true, 4, true, Case::Types::SomeFp32},
        Case{"llama", 1, 2, 1, 1, "1f1b", false, 4, true, Case::Types::SomeFp32},
        Case{"gpt2", 1, 2, 2, 2, "zb-h1", false, 4, true, Case::Types::Autocast},
        Case{"llama", 1, 2, 1, 3, "1f1b", true, 4, true, Case::Types::Autocast},
        // Three ranks share four heads.
        Case{"gpt2", 1, 3, 2, 3, "1f1b", true, 4}, Case{"llama", 1, 3, 1, 1, "1f1b", false, 1},
        Case{"gpt2 that drops", 1, 2, 2, 3, "zb-h1", true, 4},
        Case{"gpt2 that drops", 1, 2, 4, 2, "interleaved", false, 4}),
    [](const auto& info) {
      std::string name = name_of(info.param);
      std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
      return name;
    });

TEST_P(ParallelMatrix, IsOneProcess) {
  expect_near(course_of(GetParam()), course_alone(GetParam()), GetParam());
}

TEST(ParallelMatrix, PipelinesAloneHaveItsBits) {
  for (const Case& one :
       {Case{"gpt2", 1, 1, 4, 3, "zb-v", false, 4}, Case{"llama", 1, 1, 2, 1, "zb-h1", false, 4},
        Case{"neox", 1, 1, 3, 2, "interleaved", false, 1},
        Case{"gpt2", 1, 1, 2, 3, "1f1b", false, 4, true, Case::Types::SomeFp32},
        Case{"llama", 1, 1, 2, 1, "zb-h1", false, 4, true, Case::Types::Autocast}}) {
    Values found = course_of(one), expected = course_alone(one);
    const auto norms = [](Values& values) {
      return tensor_from_bytes(values.extract("norms").mapped(), at::kDouble);
    };
    const at::Tensor found_norms = norms(found);
    EXPECT_TRUE(at::allclose(found_norms, norms(expected), 1e-13, 0)) << name_of(one);
    EXPECT_EQ(differences(found, expected), "") << name_of(one);
  }
}

TEST(ParallelMatrix, DelaysAtEveryOperationChangeNothing) {
  for (const Case& one :
       {Case{"gpt2", 1, 2, 2, 3, "zb-v", true, 2}, Case{"llama", 2, 1, 2, 2, "zb-h1", false, 2}}) {
    RankOptions late = mesh_of(one);
    late.mesh.own_transport = [](const zero::detail::TransportOptions& options) {
      return std::make_shared<LateTransport>(zero::detail::make_shm_transport(options),
                                             std::chrono::microseconds(400));
    };
    EXPECT_EQ(differences(course_of(one, late), course_of(one)), "") << name_of(one);
  }
}

TEST(ParallelMatrix, ARankThatDiesIsNamedWithItsPlace) {
  const Case one{"gpt2", 2, 2, 2, 3, "1f1b", true, 4};
  const auto results = collect_ranks(
      one.ranks(),
      [&](const Mesh& mesh) {
        Trained trained(one, mesh);
        trained.step();
        trained.trouble = [&](int micro) {
          if (mesh.rank() == 7 && micro == 2) _exit(9);
        };
        trained.step();
      },
      mesh_of(one));
  EXPECT_EQ(results[7].exit, 9);
  for (size_t rank = 0; rank < 7; ++rank) EXPECT_EQ(results[rank].exit, 1) << rank;
  // Its neighbours along the pipeline and among the ranks that share its layers wait for it.
  for (const size_t rank : {3u, 6u})
    EXPECT_NE(results[rank].error.find("rank 7 (pp 1, dp 1, tp 1)"), std::string::npos)
        << results[rank].error;
}

// All of a checkpoint's tensors but what is a rank's own.
Values values_of(const std::filesystem::path& path) {
  const zero::CheckpointReader reader(path);
  Values values;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with("rank/")) continue;
    const zero::BoxRange whole = zero::BoxRange::whole(tensor.shape);
    std::string& bytes = values[name];
    bytes.resize(static_cast<size_t>(whole.numel * zero::itemsize(tensor.dtype)));
    reader.read(name, whole, bytes.data());
  }
  return values;
}

// Each mesh loads what the one before has saved, and saves it again: no bit is lost, states included.
TEST(ParallelMatrix, CheckpointsGoFromAnyMeshToAnyOther) {
  for (const auto& [model, bf16] : {std::pair{"gpt2", false}, {"llama", true}, {"neox", false}}) {
    const TemporaryDirectory folder;
    Values saved;
    for (const Case& one : {Case{model, 2, 2, 2, 2, "zb-h1", true}, Case{model, 1, 1, 1, 0, "1f1b"},
                            Case{model, 1, 2, 2, 3, "interleaved"}, Case{model, 1, 1, 4, 1, "1f1b"},
                            Case{model, 2, 2, 1, 3, "1f1b", true}, Case{model, 1, 4, 2, 0, "zb-v", true},
                            Case{model, 4, 1, 1, 3, "1f1b"}}) {
      Case typed = one;
      typed.bf16 = bf16;
      const auto from = folder.path() / "from", to = folder.path() / "to";
      run_ranks(
          one.ranks(),
          [&](const Mesh& mesh) {
            Trained trained(typed, mesh);
            if (std::filesystem::exists(from))
              trained.pipeline->engine().load(zero::latest_checkpoint(from));
            else
              for (int step = 0; step < 2; ++step) trained.step();
            trained.pipeline->engine().save(to);
          },
          mesh_of(one));
      const Values found = values_of(zero::latest_checkpoint(to));
      EXPECT_EQ(differences(found, saved.empty() ? found : saved), "") << name_of(typed);
      saved = found;
      std::filesystem::remove_all(from);
      std::filesystem::rename(to, from);
    }
    EXPECT_GT(saved.size(), 50);
  }
}

}  // namespace
