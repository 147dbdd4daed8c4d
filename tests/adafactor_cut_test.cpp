// Adafactor where ranks along "tp" hold parts of parameters: parameters and means are those of one process,
// to the bit.
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "support/cut_net.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace {
using namespace zero::testing;
using zero::Box;
using zero::ParameterPart;

/// A parameter of the whole model, and how ranks cut it.
struct CutParameter {
  std::vector<int64_t> shape;
  int64_t dim = -1;         // -1: every rank has all of it
  int64_t thirds = 1;       // that many matrices side by side along `dim`, each cut
  int64_t ranks_a_box = 1;  // neighbours that have the same
};

const std::map<std::string, CutParameter>& cut_parameters() {
  static const std::map<std::string, CutParameter> all{
      {"rows", {{44, 300}, 0}},      {"columns", {{24, 516}, 1}},   {"qkv", {{60, 30}, 0, 3}},
      {"vector", {{600}, 0}},        {"matrices", {{4, 9, 10}, 0}}, {"last_columns", {{3, 9, 20}, 2}},
      {"keys", {{24, 10}, 0, 1, 2}}, {"whole", {{20, 20}}},         {"bias", {{33}}},
  };
  return all;
}

/// What rank `tp` of `ranks` has.
ParameterPart part_of(const CutParameter& one, int tp, int ranks) {
  ParameterPart part{one.shape, Box::whole(one.shape), {}};
  if (one.dim < 0) {
    part.replicated_over = {"tp"};
    return part;
  }
  const auto dim = static_cast<size_t>(one.dim);
  const int64_t shared = ranks > one.ranks_a_box ? one.ranks_a_box : 1, third = one.shape[dim] / one.thirds,
                size = third / (ranks / shared);
  part.box.begin[dim] = tp / shared * size;
  part.box.size[dim] = size;
  part.is_copy = tp % shared != 0;
  for (int64_t i = 1; i < one.thirds; ++i) {
    Box other = part.box;
    other.begin[dim] += i * third;
    part.beside.push_back(other);
  }
  return part;
}

at::Tensor taken(const at::Tensor& whole, const ParameterPart& part) {
  std::vector<Box> boxes{part.box};
  boxes.insert(boxes.end(), part.beside.begin(), part.beside.end());
  std::vector<at::Tensor> all;
  int64_t along = 0;
  for (const Box& box : boxes) {
    at::Tensor one = whole;
    for (size_t dim = 0; dim < box.size.size(); ++dim) {
      one = one.narrow(static_cast<int64_t>(dim), box.begin[dim], box.size[dim]);
      if (box.begin[dim] != part.box.begin[dim]) along = static_cast<int64_t>(dim);
    }
    all.push_back(one);
  }
  return at::cat(all, along).contiguous();
}

/// Its gradients are what they are said to be, so they have the same bits however it is cut.
struct GivenGradients : torch::nn::Module {
  GivenGradients(int tp, int ranks) {
    uint64_t seed = 1;
    for (const auto& [name, one] : cut_parameters()) {
      parts[name] = part_of(one, tp, ranks);
      register_parameter(name, taken(CutNetImpl::whole(one.shape, seed++), parts[name]).clone());
    }
  }
  at::Tensor loss(int64_t step) {
    at::Tensor sum = at::zeros({});
    auto seed = static_cast<uint64_t>(100 * (step + 1));
    for (const auto& item : named_parameters()) {
      // Of many sizes: sums that round depend on their order.
      const std::vector<int64_t>& shape = cut_parameters().at(item.key()).shape;
      const at::Tensor size = CutNetImpl::whole(shape, seed++).mul(3).exp();
      const at::Tensor gradient = CutNetImpl::whole(shape, seed++).mul(size);
      sum = sum + (item.value() * taken(gradient, parts.at(item.key())).to(item.value().dtype())).sum();
    }
    return sum;
  }
  std::map<std::string, ParameterPart> parts;
};

struct CutRunOfSteps {
  CutRunOfSteps(const zero::Adafactor& rule, int tp, int ranks, zero::EngineOptions options, zero::Mesh mesh)
      : model(std::make_shared<GivenGradients>(tp, ranks)) {
    if (ranks > 1) options.parts = model->parts;
    engine = std::make_unique<zero::Engine>(*model, rule, options, std::move(mesh));
  }
  void steps(int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      engine->backward(engine->forward([&] { return model->loss(i); }));
      EXPECT_FALSE(engine->step().skipped());
    }
  }
  std::shared_ptr<GivenGradients> model;
  std::unique_ptr<zero::Engine> engine;
};

void expect_parts_of(CutRunOfSteps& whole, CutRunOfSteps& cut, const std::string& where) {
  for (const auto& [name, part] : cut.model->parts) {
    const auto same = [&](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
      EXPECT_TRUE(at::equal(a, b)) << where << ": " << name << " " << what;
    };
    same(taken(whole.engine->full_parameter(name), part), cut.engine->full_parameter(name), "");
    same(taken(whole.engine->full_optimizer_state(name, "exp_avg"), part),
         cut.engine->full_optimizer_state(name, "exp_avg"), "exp_avg");
    const bool is_vector = part.global_shape.size() < 2;
    for (const std::string kind : {is_vector ? "exp_avg_sq" : "exp_avg_sq_row", "exp_avg_sq_col"})
      if (!is_vector || kind == "exp_avg_sq")
        same(whole.engine->full_optimizer_state(name, kind), cut.engine->full_optimizer_state(name, kind),
             kind);
  }
}

void expect_one_process(int dp, int tp, int stage, zero::Dtype dtype) {
  RankOptions ranks;
  ranks.mesh.axes = {{"dp", dp}, {"tp", tp}};
  const TemporaryDirectory folder;
  run_ranks(
      dp * tp,
      [&](const zero::Mesh& mesh) {
        const std::string where =
            std::to_string(dp) + " x " + std::to_string(tp) + " stage " + std::to_string(stage);
        for (const zero::Adafactor& rule : {zero::Adafactor{.weight_decay = 0.1, .beta1 = 0.9},
                                            zero::Adafactor{.lr = 0.01, .beta1 = 0.5, .torch_form = true}}) {
          const zero::EngineOptions options{.stage = stage, .dtype = dtype};
          const int own = mesh.group("tp").rank();
          CutRunOfSteps whole(rule, 0, 1, options, zero::Mesh::join({})), cut(rule, own, tp, options, mesh);
          whole.steps(0, 3);
          cut.steps(0, 3);
          expect_parts_of(whole, cut, where);
          const auto path = cut.engine->save(folder.path() / (rule.torch_form ? "torch" : "own"));
          const int other_stage = 3 - stage;
          CutRunOfSteps again(rule, own, tp, {.stage = other_stage, .dtype = dtype}, mesh),
              one(rule, 0, 1, options, zero::Mesh::join({}));
          again.engine->load(path);
          one.engine->load(path);
          for (CutRunOfSteps* run : {&whole, &again, &one}) run->steps(3, 5);
          expect_parts_of(whole, again, where + " resumed");
          expect_parts_of(whole, one, where + " resumed in one process");
        }
      },
      ranks);
}

TEST(AdafactorCut, StepsAreThoseOfOneProcessToTheBit) {
  for (const int stage : {0, 1, 2, 3}) expect_one_process(2, 2, stage, zero::Dtype::f32);
  expect_one_process(2, 2, 2, zero::Dtype::bf16);
}

// Also where two ranks each have the same part, which counts once.
TEST(AdafactorCut, FourRanksAlongOneAxisAreOneProcessToo) {
  for (const int stage : {0, 3}) expect_one_process(1, 4, stage, zero::Dtype::f32);
}

TEST(AdafactorCut, RanksThatLackAPartAreRefused) {
  run_ranks(
      4,
      [](const zero::Mesh& mesh) {
        GivenGradients model(0, 2);  // the first part on all ranks
        EXPECT_ERROR(zero::Engine(model, zero::Adafactor{}, {.parts = model.parts}, mesh), Unsupported,
                     "Adafactor needs whole rows and columns");
      },
      two_by_two());
}

}  // namespace
