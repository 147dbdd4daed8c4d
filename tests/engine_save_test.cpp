// Saving in the background: the values are those of the moment it began, errors reach all ranks, and whatever
// is killed whenever leaves a checkpoint that loads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <torch/nn/modules/batchnorm.h>

#include <random>
#include <thread>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/soak.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/plan_report.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;

double train_step(zero::Engine& engine, SmallNet& model, const zero::Mesh& mesh, int step) {
  const Batch batch = batch_of(step, 12, 13).rows(mesh.rank() * (12 / mesh.size()), 12 / mesh.size());
  const torch::Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
  engine.backward(loss);
  engine.step();
  return loss.item<double>();
}

TEST(EngineSave, GoesOnWhileTrainingDoes) {
  const TemporaryDirectory folder;
  for (int stage = 0; stage <= 3; ++stage) {
    const fs::path directory = folder.path() / std::to_string(stage);
    run_ranks(2, [&](const zero::Mesh& mesh) {
      torch::manual_seed(1);
      SmallNet model(13, 6, 2);
      zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, {.stage = stage}, mesh);
      EXPECT_FALSE(engine.finish_save().has_value());
      for (int step = 0; step < 3; ++step) train_step(engine, model, mesh, step);
      engine.begin_save(directory, R"({"position": 7})");
      EXPECT_TRUE(engine.is_saving());
      EXPECT_ERROR(engine.begin_save(directory), Usage, "another save is under way");
      EXPECT_ERROR(engine.save(directory), Usage, "another save is under way");
      std::vector<double> expected;
      std::optional<fs::path> saved;
      for (int step = 3; step < 6; ++step) {
        expected.push_back(train_step(engine, model, mesh, step));
        if (engine.is_saving()) saved = engine.finish_save(/*wait=*/false);
      }
      if (!saved) saved = engine.finish_save();
      EXPECT_EQ(*saved, directory / "step-00000003");
      EXPECT_EQ(*saved, zero::latest_checkpoint(directory));
      EXPECT_FALSE(engine.is_saving());

      SmallNet other(13, 6, 2);
      zero::Engine resumed(*other, zero::AdamW{.lr = 1e-2}, {.stage = stage}, mesh);
      EXPECT_EQ(resumed.load(*saved), R"({"position":7})");
      std::vector<double> losses;
      for (int step = 3; step < 6; ++step) losses.push_back(train_step(resumed, other, mesh, step));
      EXPECT_EQ(losses, expected) << "stage " << stage;
    });
  }
}

// One rank cannot write, as on a full disk: all hear of it, with the path, and go on.
TEST(EngineSave, AFullDiskIsAnErrorOnEveryRank) {
  const TemporaryDirectory folder;
  run_ranks(3, [&](const zero::Mesh& mesh) {
    SmallNet model(13, 6, 2);
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 3}, mesh);
    train_step(engine, model, mesh, 0);
    const fs::path first = engine.save(folder.path());
    for (const bool background : {true, false}) {
      train_step(engine, model, mesh, 1);
      rlimit before{};
      getrlimit(RLIMIT_FSIZE, &before);
      if (mesh.rank() == 1) {
        signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{100, before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      auto saving = [&] {
        if (!background) return engine.save(folder.path());
        engine.begin_save(folder.path());
        return *engine.finish_save();
      };
      EXPECT_ERROR(saving(), Io, mesh.rank() == 1 ? "rank-00001" : "rank 1: ");
      if (mesh.rank() == 1) setrlimit(RLIMIT_FSIZE, &before);
      EXPECT_FALSE(engine.is_saving());
      mesh.world().barrier("abandoned");
      EXPECT_EQ(zero::latest_checkpoint(folder.path()), first);
      EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1)
          << "nothing half is left";
      mesh.world().barrier("looked");
    }
    train_step(engine, model, mesh, 2);
    engine.begin_save(folder.path());
    EXPECT_EQ(engine.finish_save()->filename(), "step-00000004");
  });
}

TEST(EngineSave, APathThatCannotBeMadeIsNamedOnEveryRank) {
  const TemporaryDirectory folder;
  folder.write("file", "x");
  run_ranks(2, [&](const zero::Mesh& mesh) {
    SmallNet model(13, 6, 2);
    zero::Engine engine(*model, zero::AdamW{}, {.stage = 1}, mesh);
    EXPECT_ERROR(engine.begin_save(folder.path() / "file"), Io, (folder.path() / "file").string());
    EXPECT_FALSE(engine.is_saving());
    engine.save(folder.path());
  });
}

TEST(EngineSave, AnEngineThatGoesAwayLeavesNothingHalf) {
  const TemporaryDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    {
      SmallNet model(13, 6, 2);
      zero::Engine engine(*model, zero::AdamW{}, {.stage = 2}, mesh);
      engine.begin_save(folder.path());
    }
    mesh.world().barrier("gone");
    EXPECT_EQ(zero::latest_checkpoint(folder.path()), "");
  });
}

struct Buffered : torch::nn::Module {
  SmallNet net{13, 6, 1};
  torch::nn::BatchNorm1d norm{6};
  Buffered() {
    register_module("net", net);
    register_module("norm", norm);
  }
};

// What all ranks hold alike is stored once: replicas share parameters out, and equal buffers are rank 0's.
TEST(EngineSave, WhatIsReplicatedIsWrittenOnce) {
  const TemporaryDirectory folder;
  run_ranks(3, [&](const zero::Mesh& mesh) {
    torch::manual_seed(1);
    Buffered model;
    zero::EngineOptions options{.stage = 0};
    options.share_parameters = false;
    zero::Engine engine(model, zero::AdamW{}, options, mesh);
    model.norm->running_mean.fill_(mesh.rank() == 2 ? 5 : 1);
    const zero::CheckpointReader reader(engine.save(folder.path()));
    int64_t elements = 0, own = 0;
    for (const auto& [name, tensor] : reader.tensors()) {
      for (const auto& piece : tensor.pieces) elements += name.starts_with("model/") ? piece.range.numel : 0;
      if (name.starts_with("rank/") && !name.ends_with("/random")) ++own;
      if (name == "model/net.embedding.weight") {
        EXPECT_EQ(tensor.pieces.size(), 3) << name;
      }
    }
    int64_t parameters = 0;
    for (const std::string& name : engine.parameter_names())
      parameters += engine.full_parameter(name).numel();
    EXPECT_EQ(elements, parameters);
    EXPECT_EQ(own, 1);
    EXPECT_TRUE(reader.tensors().contains("rank/2/buffer/norm.running_mean"));
    EXPECT_TRUE(reader.tensors().contains("buffer/norm.running_var"));
    model.norm->running_mean.zero_();
    engine.load(zero::latest_checkpoint(folder.path()));
    EXPECT_EQ(model.norm->running_mean[0].item<float>(), mesh.rank() == 2 ? 5 : 1);
  });
}

// Ranks along other axes than the data-parallel one hold the same parameters: all ranks of the mesh make one
// checkpoint, each element once, and ranks without such an axis read it.
TEST(EngineSave, RanksOfAllAxesMakeOneCheckpoint) {
  using Axes = std::vector<zero::Axis>;
  for (const Axes& axes :
       {Axes{{"dp", 2}, {"tp", 2}}, Axes{{"tp", 2}, {"dp", 2}}, Axes{{"tp", 4}, {"dp", 1}}}) {
    const TemporaryDirectory folder;
    RankOptions options;
    options.mesh.axes = axes;
    run_ranks(
        4,
        [&](const zero::Mesh& mesh) {
          torch::manual_seed(1);
          Buffered model;
          zero::Engine engine(model, zero::AdamW{.lr = 1e-2}, {.stage = 3}, mesh);
          model.norm->running_mean.fill_(mesh.rank() == 3 ? 5 : 1);
          torch::manual_seed(100 + mesh.rank());
          const zero::CheckpointReader reader(engine.save(folder.path()));
          EXPECT_EQ(reader.files().size(), 4);
          reader.verify();
          int64_t largest = 0, written = 0;
          for (const auto& [name, tensor] : reader.tensors())
            for (const auto& piece : tensor.pieces) {
              const int64_t bytes = piece.range.numel * zero::itemsize(tensor.dtype);
              if (name.starts_with("model/")) written += bytes;
              if (name == "model/net.embedding.weight") largest = std::max(largest, bytes);
            }
          int64_t parameters = 0;
          for (const std::string& name : engine.parameter_names()) {
            const torch::Tensor full = engine.full_parameter(name);
            torch::Tensor stored = torch::empty_like(full);
            reader.read("model/" + name, zero::BoxRange::whole(full.sizes()), stored.data_ptr());
            EXPECT_TRUE(torch::equal(stored, full)) << name;
            parameters += full.numel() * 4;
          }
          EXPECT_EQ(written, parameters);
          EXPECT_LE(largest, 13 * 6 * 4 / 2) << "replicas share the work";
          EXPECT_TRUE(reader.tensors().contains("rank/3/buffer/norm.running_mean"));
          for (int rank = 0; rank < 4; ++rank)
            EXPECT_TRUE(reader.tensors().contains("rank/" + std::to_string(rank) + "/random"));

          const torch::Tensor drawn = torch::rand({4});
          model.norm->running_mean.zero_();
          torch::manual_seed(7);
          engine.load(zero::latest_checkpoint(folder.path()));
          EXPECT_EQ(model.norm->running_mean[0].item<float>(), mesh.rank() == 3 ? 5 : 1);
          EXPECT_TRUE(torch::equal(torch::rand({4}), drawn)) << "its own generator";
        },
        options);
    run_ranks(3, [&](const zero::Mesh& mesh) {
      torch::manual_seed(2);
      Buffered model;
      zero::Engine engine(model, zero::AdamW{.lr = 1e-2}, {.stage = 2}, mesh);
      engine.load(zero::latest_checkpoint(folder.path()));
      torch::manual_seed(1);
      Buffered plain;
      for (const auto& parameter : plain.named_parameters())
        EXPECT_TRUE(torch::equal(engine.full_parameter(parameter.key()), parameter.value()))
            << parameter.key();
    });
  }
}

// A checkpoint of the trainable parameters alone goes on from the frozen ones it was trained with, on any
// ranks, and from no others.
TEST(EngineSave, FrozenParametersMayBeLeftOut) {
  const TemporaryDirectory folder;
  auto make = [](bool changed) {
    torch::manual_seed(1);
    SmallNet model(13, 6, 2);
    for (auto& p : model->layers[0]->parameters()) p.set_requires_grad(false);
    torch::NoGradGuard no_grad;
    if (changed) model->layers[0]->named_parameters()["up.bias"][1] += 1e-3;
    return model;
  };
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](const zero::Mesh& mesh) {
      if (ranks == 2) {
        SmallNet model = make(false);
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, {.stage = 3}, mesh);
        for (int step = 0; step < 2; ++step) train_step(engine, model, mesh, step);
        const zero::CheckpointReader whole(engine.save(folder.path() / "whole"));
        const zero::CheckpointReader part(engine.save(folder.path() / "part", "{}", 0, "the base model"));
        EXPECT_EQ(whole.tensors().size() - part.tensors().size(), 6);
        EXPECT_TRUE(whole.tensors().contains("model/layers.0.up.bias"));
        EXPECT_FALSE(part.tensors().contains("model/layers.0.up.bias"));
      }
      std::vector<double> losses;
      for (const char* name : {"whole", "part"}) {
        SmallNet model = make(false);
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, {.stage = 3}, mesh);
        engine.load(zero::latest_checkpoint(folder.path() / name));
        losses.push_back(train_step(engine, model, mesh, 2));
      }
      EXPECT_EQ(losses[0], losses[1]);
      SmallNet other = make(true);
      zero::Engine engine(*other, zero::AdamW{.lr = 1e-2}, {.stage = 3}, mesh);
      EXPECT_ERROR(engine.load(zero::latest_checkpoint(folder.path() / "part")), Config,
                   "layers.0.up.bias is not the one");
      EXPECT_ERROR(engine.load(zero::latest_checkpoint(folder.path() / "part")), Config,
                   "begin with the base model");
      engine.load(zero::latest_checkpoint(folder.path() / "whole"));
    });
}

// What the plan says a save copies is what it writes, but for padding.
TEST(EngineSave, TheCopyIsThePlans) {
  const TemporaryDirectory folder;
  for (int stage = 0; stage <= 3; ++stage)
    run_ranks(2, [&](const zero::Mesh& mesh) {
      SmallNet model(13, 6, 2);
      for (auto& p : model->layers[0]->parameters()) p.set_requires_grad(false);
      zero::Engine engine(*model, zero::AdamW{}, {.stage = stage, .dtype = torch::kBFloat16}, mesh);
      for (const bool trainable_only : {false, true}) {
        int64_t values = 0, most = 0;
        for (const zero::UnitLayout& unit : engine.plan().units) {
          if (!unit.trainable && trainable_only) continue;
          const int64_t element = unit.trainable ? 12 : 2;
          values += unit.numel * element;
          most += (unit.padded_numel + mesh.size()) * element;
        }
        const fs::path directory =
            folder.path() / std::to_string(stage) / (trainable_only ? "part" : "whole");
        const zero::CheckpointReader reader(
            engine.save(directory, "{}", 0, trainable_only ? "elsewhere" : ""));
        int64_t written = 0;
        for (const auto& [name, tensor] : reader.tensors())
          if (name.starts_with("model/") || name.starts_with("optimizer/"))
            for (const auto& piece : tensor.pieces)
              written += piece.range.numel * zero::itemsize(tensor.dtype);
        EXPECT_EQ(written, values);
        const int64_t planned = zero::save_copy_bytes(engine.plan(), trainable_only) * mesh.size();
        EXPECT_GE(planned, values);
        EXPECT_LE(planned, most);
      }
    });
}

// Ranks that save all the time, and one of them killed at some moment. Each round goes on from what the last
// one left, so every checkpoint is loaded, too.
TEST(EngineSave, SurvivesAKilledRankAtAnyMoment) {
  const TemporaryDirectory folder;
  void* shared = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* published = static_cast<volatile int64_t*>(shared);
  *published = 0;
  std::mt19937 random(11);
  int progressed = 0;
  // Moments are drawn from this span. It grows where no save was finished: a busy machine takes longer for
  // one.
  constexpr int64_t kShortest = 200'000, kLongest = 3'000'000;
  int64_t span_us = kShortest;
  const int moments = soak_or(15, 200);
  for (int moment = 0; moment < moments; ++moment) {
    const int victim = static_cast<int>(random() % 2);
    const std::chrono::microseconds delay(random() % span_us);
    const bool background = moment % 2 == 0;
    const int64_t before = *published;
    collect_ranks(2, [&](const zero::Mesh& mesh) {
      SmallNet model(13, 6, 2);
      zero::Engine engine(*model, zero::AdamW{.lr = 1e-3}, {.stage = 3}, mesh);
      const fs::path latest = zero::latest_checkpoint(folder.path());
      if (!latest.empty()) engine.load(latest);
      mesh.world().barrier("loaded");
      // In most rounds the other rank does not live to find out, which may take it seconds.
      const bool finds_out = moment < 3;
      if (mesh.rank() == victim || !finds_out)
        std::thread([wait = mesh.rank() == victim ? delay : delay + std::chrono::milliseconds(60)] {
          std::this_thread::sleep_for(wait);
          kill(getpid(), SIGKILL);
        }).detach();
      for (auto step = static_cast<int>(engine.stats().steps);; ++step) {
        train_step(engine, model, mesh, step);
        if (background && !engine.is_saving()) engine.begin_save(folder.path(), "{}", 2);
        const auto saved = background ? engine.finish_save(false) : engine.save(folder.path(), "{}", 2);
        if (saved && mesh.rank() == 0) *published = zero::CheckpointReader(*saved).step();
      }
    });
    const bool saved = *published > before;
    progressed += saved;
    span_us = saved ? std::max(kShortest, span_us * 3 / 4) : std::min(kLongest, span_us * 3 / 2);
    const fs::path latest = zero::latest_checkpoint(folder.path());
    if (*published == 0 && latest.empty()) continue;  // killed before the first
    const zero::CheckpointReader reader(latest);
    EXPECT_NO_THROW(reader.verify()) << "moment " << moment;
    EXPECT_GE(reader.step(), *published) << "moment " << moment;
  }
  EXPECT_GT(progressed, moments / 5) << "the moments are not those of saves";
  munmap(shared, sizeof(int64_t));
}

}  // namespace
