// Engines over several hosts of several ranks: bits, and bytes that cross the network, against the plan.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
using Hosts = std::vector<std::string>;
using zero::Communication;

const std::vector<Hosts> kPlaces{{"a", "a", "b", "b"}, {"a", "b"}, {"a", "a", "a", "b"}};

RankOptions places_of(Hosts hosts, Communication communication) {
  RankOptions options;
  options.hosts = std::move(hosts);
  options.mesh.communication = communication;
  return options;
}

struct Case {
  int stage = 0;
  int accumulation = 1;
  int group = 0;
  zero::Dtype dtype = zero::Dtype::f32;
  int64_t budget = -1;
  std::string text() const {
    return "stage " + std::to_string(stage) + " accumulation " + std::to_string(accumulation) + " group " +
           std::to_string(group) + " " + std::string(to_string(dtype)) + " budget " + std::to_string(budget);
  }
};

zero::EngineOptions options_of(const Case& what) {
  zero::EngineOptions options{.stage = what.stage, .accumulation_steps = what.accumulation};
  options.shard_group_ranks = what.group;
  options.dtype = what.dtype;
  options.budget_bytes = what.budget;
  options.gradient_clipping = 0.5;
  options.reduce_bucket_numel = 1500;  // several pieces
  return options;
}

/// Layers that are needed once forward and once backward, as the plan of stage 3 has it.
class Chain {
 public:
  Chain(const Case& what, const zero::Mesh& mesh) {
    torch::manual_seed(4);
    for (int i = 0; i < 5; ++i) net_->push_back(torch::nn::Linear(22 + i, 23 + i));
    engine_.emplace(*net_, zero::AdamW{.lr = 1e-2}, options_of(what), mesh);
  }

  void steps(int count) {
    const auto dtype = net_->parameters()[0].scalar_type();
    for (int step = 0; step < count; ++step) {
      for (int i = 0; i < engine_->plan().accumulation_steps; ++i)
        engine_->backward(engine_->forward([&] {
          return net_->forward(torch::ones({2, 22}, dtype).requires_grad_()).square().mean();
        }));
      engine_->step();
    }
  }

  zero::Engine& engine() { return *engine_; }

 private:
  torch::nn::Sequential net_;
  std::optional<zero::Engine> engine_;
};

/// A small net trained for a few steps; every rank its own part of the batches.
class HostsRun {
 public:
  HostsRun(const Case& what, const zero::Mesh& mesh) : what_(what), mesh_(mesh) {
    torch::manual_seed(4);
    model_ = zero::lazily([] { return SmallNet(); });
    engine_.emplace(*model_, zero::AdamW{.lr = 1e-2}, options_of(what), mesh);
  }

  void steps(int count) {
    for (int i = 0; i < count * what_.accumulation; ++i, ++batch_) {
      const Batch batch = batch_of(batch_, mesh_.size()).rows(mesh_.rank(), 1);
      engine_->backward(engine_->forward([&] { return model_->loss(batch.tokens, batch.targets); }));
      if ((i + 1) % what_.accumulation == 0) engine_->step();
    }
  }

  zero::Engine& engine() { return *engine_; }
  std::vector<Tensor> values() {
    std::vector<Tensor> all;
    for (const std::string& name : engine_->parameter_names()) all.push_back(engine_->full_parameter(name));
    return all;
  }

 private:
  Case what_;
  zero::Mesh mesh_;
  SmallNet model_{nullptr};
  std::optional<zero::Engine> engine_;
  int64_t batch_ = 0;
};

// Bytes that this step of all ranks has sent, by host.
std::vector<int64_t> sent_by_host(const zero::Mesh& mesh, int64_t own) {
  Tensor all = torch::empty({mesh.size()}, torch::kLong);
  mesh.world().all_gather(all, torch::full({1}, own, torch::kLong), "bytes").wait();
  const std::vector<int> hosts = mesh.world().memories();
  std::vector<int64_t> sums(static_cast<size_t>(*std::max_element(hosts.begin(), hosts.end())) + 1);
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    sums[static_cast<size_t>(hosts[rank])] += all[static_cast<int64_t>(rank)].item<int64_t>();
  return sums;
}

std::vector<Case> cases_for(size_t ranks) {
  std::vector<Case> cases;
  for (int stage = 0; stage <= 3; ++stage) {
    cases.push_back({.stage = stage});
    cases.push_back({.stage = stage, .accumulation = 3});
    cases.push_back({.stage = stage, .dtype = zero::Dtype::bf16});
    if (ranks == 4 && stage > 0) cases.push_back({.stage = stage, .group = 2});
  }
  cases.push_back({.stage = 3, .budget = 0});
  cases.push_back({.stage = 3, .accumulation = 3, .budget = int64_t{1} << 40});
  return cases;
}

TEST(EngineHosts, WhatCrossesIsWhatThePlanSays) {
  for (const Hosts& hosts : kPlaces)
    for (const auto communication : {Communication::exact, Communication::fast})
      run_ranks(
          static_cast<int>(hosts.size()),
          [&](const zero::Mesh& mesh) {
            for (const Case& what : cases_for(hosts.size())) {
              SCOPED_TRACE(what.text() + " " + std::string(to_string(communication)) +
                           " ranks on b: " + std::to_string(std::count(hosts.begin(), hosts.end(), "b")));
              Chain run(what, mesh);
              run.steps(2);
              const int64_t before = run.engine().stats().network_bytes;
              run.steps(1);
              const auto sent = sent_by_host(mesh, run.engine().stats().network_bytes - before);
              const auto& planned = run.engine().plan().network;
              ASSERT_EQ(planned.size(), 2U);
              for (const size_t host : {0, 1}) {
                EXPECT_EQ(sent[host], planned[host].sent_bytes) << "host " << host;
                EXPECT_EQ(sent[1 - host], planned[host].received_bytes) << "host " << host;
                EXPECT_GT(sent[host], 0);
              }
            }
          },
          places_of(hosts, communication));
}

// Two hosts of two ranks in fp32: each parameter enters a host once, though two ranks hold it, and each
// element of a gradient leaves a host at most once.
TEST(EngineHosts, EveryElementCrossesOncePerHost) {
  run_ranks(
      4,
      [](const zero::Mesh& mesh) {
        for (const int stage : {1, 2}) {
          Chain run({.stage = stage}, mesh);
          run.steps(1);
          int64_t numel = 0;
          for (const auto& unit : run.engine().plan().units) numel += unit.padded_numel;
          const auto& network = run.engine().plan().network;
          EXPECT_EQ(network[0].sent_bytes, 4 * (numel / 2 + numel / 2))
              << "half the parameters, half the sums";
          EXPECT_EQ(network[1].sent_bytes, 4 * (numel / 2 + numel)) << "half the parameters, two rows";
          EXPECT_EQ(run.engine().plan().rank.all_gather_elements, numel);
        }
      },
      places_of(kPlaces[0], Communication::exact));
}

// Four ranks give the same bits wherever they are, at every stage.
TEST(EngineHosts, ExactSumsHaveTheBitsOfOneHost) {
  for (const auto dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
    std::string expected;
    for (const Hosts& hosts :
         {Hosts{"a", "a", "a", "a"}, kPlaces[0], kPlaces[2], Hosts{"a", "b", "a", "b"}}) {
      const auto results = run_ranks(
          4,
          [&](const zero::Mesh& mesh) {
            for (int stage = 0; stage <= 3; ++stage) {
              HostsRun run({.stage = stage, .dtype = dtype}, mesh);
              run.steps(4);
              for (const Tensor& value : run.values())
                if (mesh.rank() == 0) hand_back(value);
            }
          },
          places_of(hosts, Communication::exact));
      const std::string& bytes = results[0].bytes;
      ASSERT_FALSE(bytes.empty());
      for (size_t stage = 1; stage <= 3; ++stage)
        EXPECT_EQ(bytes.compare(0, bytes.size() / 4, bytes, stage * (bytes.size() / 4), bytes.size() / 4), 0)
            << "stage " << stage;
      if (expected.empty()) expected = bytes;
      EXPECT_TRUE(bytes == expected) << hosts[1] << hosts[2] << hosts[3] << " " << to_string(dtype);
    }
  }
}

// Sums of hosts first: other bits, the same ones at every stage.
TEST(EngineHosts, FastSumsAreTheSameAtEveryStage) {
  const auto results = run_ranks(
      4,
      [&](const zero::Mesh& mesh) {
        for (int stage = 0; stage <= 3; ++stage) {
          HostsRun run({.stage = stage}, mesh);
          run.steps(4);
          for (const Tensor& value : run.values())
            if (mesh.rank() == 0) hand_back(value);
        }
      },
      places_of(kPlaces[0], Communication::fast));
  const std::string& bytes = results[0].bytes;
  ASSERT_FALSE(bytes.empty());
  for (size_t stage = 1; stage <= 3; ++stage)
    EXPECT_EQ(bytes.compare(0, bytes.size() / 4, bytes, stage * (bytes.size() / 4), bytes.size() / 4), 0)
        << "stage " << stage;
}

}  // namespace
