// What a program writes into parameters is kept to the bit or refused by name, whichever way it is written.
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>

#include "support/ranks.h"
#include "support/small_net.h"
#include "support/test_device.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

constexpr auto kModify = zero::Access::Modify;

template <class F>
std::string text_of_error(F&& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void train(SmallNet& model, zero::Engine& engine, int steps) {
  for (int i = 0; i < steps; ++i) {
    const Batch batch = batch_of(i, 2);
    const Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
    engine.backward(loss);
    ASSERT_TRUE(engine.step().stepped);
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return torch::equal(a.contiguous().view(torch::kInt), b.contiguous().view(torch::kInt));
}

Tensor& up_weight(SmallNet& model) { return model->layers[1]->as<BlockImpl>()->up->weight; }
const std::string kUpWeight = "layers.1.up.weight";

struct WritesCase {
  int ranks, stage;
  bool share = true, split = true;
  std::optional<at::ScalarType> dtype = torch::kBFloat16;
};

std::vector<WritesCase> all_cases() {
  return {{1, 0},
          {1, 3, true, false},
          {2, 0, false},
          {2, 1},
          {2, 2, true, false},
          {2, 3, false},
          {2, 3, true},
          {2, 3, false, false},
          {3, 1},
          {2, 3, false, true, {}},
          {1, 1, true, true, {}}};
}

std::string text_of(const WritesCase& of) {
  return std::to_string(of.ranks) + " ranks, stage " + std::to_string(of.stage) +
         (of.share ? "" : ", apart") + (of.split ? "" : ", whole masters") + (of.dtype ? "" : ", fp32");
}

// Builds a model and its engine on every rank and calls `body(model, engine, mesh)`.
void with_engine(const WritesCase& of,
                 const std::function<void(SmallNet&, zero::Engine&, const zero::Mesh&)>& body) {
  SCOPED_TRACE(text_of(of));
  run_ranks(of.ranks, [&](const zero::Mesh& mesh) {
    torch::manual_seed(5);
    SmallNet model;
    zero::EngineOptions options{.stage = of.stage, .dtype = of.dtype};
    options.share_parameters = of.share;
    options.split_master = of.split;
    zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
    body(model, engine, mesh);
  });
}

TEST(Writes, OutsideAScopeAreRefusedByNameWhereTheMasterCannotFollow) {
  const std::vector<std::function<void(SmallNet&)>> ways{
      [](SmallNet& model) { up_weight(model).zero_(); },
      [](SmallNet& model) { up_weight(model).detach().mul_(2); },
      [](SmallNet& model) { up_weight(model).data().clamp_(-0.01, 0.01); },
      [](SmallNet& model) { up_weight(model)[3].copy_(torch::ones({10})); },
      [](SmallNet& model) { *up_weight(model).data_ptr<at::BFloat16>() = 3; },
  };
  for (const WritesCase& of : {WritesCase{1, 1}, WritesCase{1, 0, true, false}, WritesCase{2, 1},
                               WritesCase{2, 2, false}, WritesCase{2, 3, false}})
    with_engine(of, [&](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
      torch::NoGradGuard no_grad;
      const auto refuses = [&](const std::string& when) {
        const Tensor before = engine.full_parameter(kUpWeight);
        for (size_t way = 0; way < ways.size(); ++way)
          EXPECT_NE(text_of_error([&] { ways[way](model); }).find(kUpWeight), std::string::npos)
              << when << ", way " << way;
        EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), before)) << when;
      };
      refuses("before the first forward");
      for (int i = 0; i < 2; ++i) {
        const Batch batch = batch_of(i, 2);
        Tensor loss;
        {
          const torch::AutoGradMode with_grad(true);
          loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
        }
        refuses("before backward");
        engine.backward(loss);
        refuses("before the step");
        engine.step();
        refuses("after the step");
        engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
        refuses("after an evaluation");
      }
      EXPECT_FALSE(engine.full_parameter(kUpWeight).isnan().any().item<bool>());
    });
}

// Alone in fp32 the parameter is the master.
TEST(Writes, OutsideAScopeAreKeptWhereTheyAreTheMaster) {
  with_engine({1, 1, true, true, {}}, [](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
    for (int i = 0; i < 2; ++i) {
      {
        torch::NoGradGuard no_grad;
        up_weight(model).fill_(0.1 * (i + 1)).data()[2].zero_();
      }
      Tensor expected = torch::full({30, 10}, 0.1 * (i + 1));
      expected[2].zero_();
      EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), expected));
      train(model, engine, 1);
      EXPECT_TRUE(engine.full_parameter(kUpWeight).isfinite().all().item<bool>());
    }
  });
}

TEST(Writes, InAScopeChangeNothingElse) {
  for (const WritesCase& of : all_cases())
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
      train(model, engine, 3);
      std::map<std::string, Tensor> before;
      for (const std::string& name : engine.parameter_names()) before[name] = engine.full_parameter(name);
      const Tensor& old = before[kUpWeight];
      const double bound = 0.125;  // a value of bf16 too
      ASSERT_TRUE((old.abs() > bound).any().item<bool>() && (old.abs() < bound / 2).any().item<bool>());
      for (const bool data : {false, true}) {
        const std::vector<std::string> names{kUpWeight};
        zero::GatherScope scope(engine, names, kModify);
        torch::NoGradGuard no_grad;
        (data ? up_weight(model).data() : up_weight(model)).clamp_(-bound, bound);
      }
      for (const auto& [name, values] : before) {
        if (name == kUpWeight) continue;
        EXPECT_TRUE(same_bits(engine.full_parameter(name), values)) << name;
      }
      // Rounding to bf16 may lift a value to the bound, which is no change.
      const Tensor now = engine.full_parameter(kUpWeight),
                   rounded = old.to(torch::kBFloat16).to(torch::kFloat);
      EXPECT_TRUE(
          same_bits(now.masked_select(rounded.abs() <= bound), old.masked_select(rounded.abs() <= bound)));
      EXPECT_TRUE(torch::equal(now.masked_select(rounded.abs() > bound),
                               old.masked_select(rounded.abs() > bound).sign() * bound));
      train(model, engine, 1);
    });
}

TEST(Writes, OfClippingThatClipsNothingCostNoPrecision) {
  for (const WritesCase& of : all_cases())
    with_engine(of, [&](SmallNet& model, zero::Engine& engine, const zero::Mesh& mesh) {
      torch::manual_seed(5);
      SmallNet same;
      zero::EngineOptions options{.stage = of.stage, .dtype = of.dtype};
      options.share_parameters = of.share;
      options.split_master = of.split;
      zero::Engine unclipped(*same, zero::AdamW{.lr = 1e-2}, options, mesh);
      for (int i = 0; i < 4; ++i) {
        train(model, engine, 1);
        train(same, unclipped, 1);
        zero::GatherScope scope(engine, kModify);
        torch::NoGradGuard no_grad;
        for (Tensor& parameter : model->parameters()) parameter.clamp_(-100, 100);
      }
      for (const std::string& name : engine.parameter_names())
        EXPECT_TRUE(same_bits(engine.full_parameter(name), unclipped.full_parameter(name))) << name;
    });
}

TEST(Writes, InAScopeToReadAreRefusedByName) {
  for (const WritesCase& of : all_cases()) {
    if (of.ranks == 1 && !of.dtype) continue;  // kept
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh& mesh) {
      train(model, engine, 1);
      for (const bool data : {false, true}) {
        {
          zero::GatherScope scope(engine);
          torch::NoGradGuard no_grad;
          mesh.world().barrier("all read");
          if (mesh.rank() == 0) (data ? up_weight(model).data() : up_weight(model)).fill_(data ? 1 : 2);
          mesh.world().barrier("one wrote");
        }
        const std::string error = text_of_error([&] { engine.step(); });
        if (mesh.rank() == 0) {
          EXPECT_NE(error.find(kUpWeight), std::string::npos) << error;
          EXPECT_NE(error.find("Access::Modify"), std::string::npos) << error;
        }
        EXPECT_EQ(text_of_error([&] { engine.step(); }), "no error") << "it is said once";
        EXPECT_FALSE(engine.full_parameter(kUpWeight).isnan().any().item<bool>());
      }
    });
  }
}

// What another program saved, in fp32.
std::string saved_model(SmallNet& of) {
  std::ostringstream out;
  torch::save(of, out);
  return out.str();
}

SmallNet other_model() {
  torch::manual_seed(99);
  return SmallNet();
}

void expect_values_of(SmallNet& other, zero::Engine& engine) {
  const auto expected = other->named_parameters();
  for (const std::string& name : engine.parameter_names())
    EXPECT_TRUE(same_bits(engine.full_parameter(name), expected[name].detach())) << name;
}

void replace_all(SmallNet& model, SmallNet& by) {
  const auto values = by->named_parameters();
  for (auto& item : model->named_parameters()) item.value().set_data(values[item.key()].detach().clone());
}

TEST(Writes, ReplacedInAScopeAreKeptToTheBit) {
  for (const WritesCase& of : all_cases())
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh& mesh) {
      SmallNet other = other_model();
      const at::ScalarType dtype = up_weight(model).scalar_type();
      for (const bool one_writes : {false, true}) {
        train(model, engine, 1);
        {
          zero::GatherScope scope(engine, kModify);
          if (!one_writes || mesh.rank() == mesh.size() - 1) replace_all(model, other);
          if (one_writes) scope.broadcast(mesh.size() - 1);
        }
        expect_values_of(other, engine);
      }
      {  // a forward of the new values, in the scope
        zero::GatherScope scope(engine, kModify);
        torch::NoGradGuard no_grad;
        for (auto& item : model->named_parameters()) item.value().set_data(torch::zeros_like(item.value()));
        const Batch batch = batch_of(0, 2);
        const Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
        EXPECT_NEAR(loss.item<double>(), std::log(29), 1e-5);
      }
      {
        zero::GatherScope scope(engine, kModify);
        replace_all(model, other);
        torch::NoGradGuard no_grad;
        model->norm->bias.fill_(3);  // in place, into what replaces it
        model->to(torch::kFloat);
      }
      other->norm->bias.detach().fill_(3);
      expect_values_of(other, engine);
      EXPECT_EQ(up_weight(model).scalar_type(), dtype);
      train(model, engine, 2);
      EXPECT_FALSE(same_bits(engine.full_parameter(kUpWeight), up_weight(other).detach()));
    });
}

// Of the parameters' type, or of another one that module.to() names first: torch::load looks at no type.
TEST(Writes, LoadedInAScopeAreKeptToTheBit) {
  for (const WritesCase& of : all_cases())
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh& mesh) {
      const at::ScalarType dtype = up_weight(model).scalar_type();
      for (const at::ScalarType type : {dtype, torch::kFloat})
        for (const bool one_loads : {false, true}) {
          train(model, engine, 1);
          SmallNet other = other_model();
          other->to(type);
          {
            zero::GatherScope scope(engine, kModify);
            if (!one_loads || mesh.rank() == mesh.size() - 1) {
              std::istringstream in(saved_model(other));
              model->to(type);
              torch::load(model, in);
            }
            if (one_loads) scope.broadcast(mesh.size() - 1);
          }
          other->to(torch::kFloat);
          expect_values_of(other, engine);
        }
    });
}

TEST(Writes, LoadedFromAnotherTypeAreRefusedByName) {
  with_engine({1, 1}, [](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
    const Tensor before = engine.full_parameter(kUpWeight);
    SmallNet other = other_model();
    {
      zero::GatherScope scope(engine, kModify);
      std::istringstream in(saved_model(other));
      torch::load(model, in);
    }
    // On a device torch::load replaces the tensor by the file's, whose type that has.
    if (!test_device().is_cpu()) return expect_values_of(other, engine);
    const std::string error = text_of_error([&] { engine.step(); });
    EXPECT_NE(error.find("weight"), std::string::npos) << error;
    EXPECT_NE(error.find("torch::load"), std::string::npos) << error;
    EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), before));
  });
}

TEST(Writes, InNestedScopesKeepWhatTheInnerOneTookOver) {
  for (const WritesCase& of : all_cases())
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
      const Tensor value = torch::randn({30, 10});
      {
        zero::GatherScope reads(engine);
        zero::GatherScope outer(engine, kModify);
        {
          const std::vector<std::string> names{kUpWeight};
          zero::GatherScope inner(engine, names, kModify);
          up_weight(model).set_data(value);
        }
        torch::NoGradGuard no_grad;
        model->norm->weight.fill_(0.3);
      }
      EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), value));
      const auto dtype = up_weight(model).scalar_type();
      EXPECT_TRUE(torch::equal(engine.full_parameter("norm.weight"),
                               torch::full({10}, 0.3F).to(dtype).to(torch::kFloat)));
      train(model, engine, 1);
    });
}

TEST(Writes, ReplacedOutsideAScopeAreRefusedByName) {
  const std::vector<std::function<void(SmallNet&)>> ways{[](SmallNet& model) {
                                                           up_weight(model).set_data(torch::zeros({30, 10}));
                                                         },
                                                         [](SmallNet& model) { model->to(torch::kDouble); },
                                                         [](SmallNet& model) {
                                                           SmallNet other = other_model();
                                                           std::istringstream in(saved_model(other));
                                                           torch::load(model, in);
                                                         }};
  for (const WritesCase& of : all_cases())
    with_engine(of, [&](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
      for (size_t way = 0; way < ways.size(); ++way) {
        const Tensor before = engine.full_parameter(kUpWeight);
        const Batch batch = batch_of(0, 2);
        const auto loss = [&] { return model->loss(batch.tokens, batch.targets); };
        const auto replaces = [&](const std::string& when, const std::function<void()>& next) {
          const std::string error = text_of_error([&] {
            ways[way](model);
            next();
          });
          EXPECT_NE(error.find("weight"), std::string::npos) << when << ", way " << way << ": " << error;
          EXPECT_NE(error.find("GatherScope"), std::string::npos) << when << ", way " << way << ": " << error;
          // One parameter is named at a time.
          for (size_t i = 0; i < engine.parameter_names().size(); ++i)
            if (text_of_error([&] { zero::GatherScope scope(engine); }) == "no error") break;
        };
        replaces("before forward", [&] { engine.forward(loss); });
        Tensor out = engine.forward(loss);
        replaces("before backward", [&] { engine.backward(out); });
        engine.backward(engine.forward(loss));
        replaces("before the step", [&] { engine.step(); });
        EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), before));
        engine.step();
      }
    });
}

TEST(Writes, ThatDoNotFitAreRefusedByName) {
  for (const WritesCase& of : {WritesCase{1, 1}, WritesCase{2, 3, false}})
    with_engine(of, [](SmallNet& model, zero::Engine& engine, const zero::Mesh&) {
      const Tensor before = engine.full_parameter(kUpWeight);
      {
        zero::GatherScope scope(engine, kModify);
        up_weight(model).set_data(torch::zeros({10, 30}));
      }
      const std::string error = text_of_error([&] { engine.step(); });
      EXPECT_NE(error.find(kUpWeight), std::string::npos) << error;
      EXPECT_NE(error.find("[10, 30]"), std::string::npos) << error;
      EXPECT_TRUE(same_bits(engine.full_parameter(kUpWeight), before));
      train(model, engine, 1);
    });
}
}  // namespace
