// Training, evaluation and generation from model directories of Hugging Face's: values, what is read, errors,
// adapters.
#include <gtest/gtest.h>

#include <set>

#include "support/expect_error.h"
#include "support/model_directory.h"
#include "support/sanitized.h"
#include "support/small_run.h"
#include "train/file_values.h"
#include "train/process_memory.h"
#include "zero/consolidate.h"
#include "zero/evaluate.h"
#include "zero/from_config.h"
#include "zero/generate.h"
#include "zero/hf_model.h"
#include "zero/lazy.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using testing::FileTensor;
using testing::metrics_of;
using testing::run_ranks;
using testing::SmallRun;
using testing::train_on;
using testing::write_model_directory;

class FromHf : public ::testing::Test {
 protected:
  std::filesystem::path directory_of(const std::string& model,
                                     const std::function<void(std::vector<FileTensor>&)>& change = {}) {
    return write_model_directory(directory_, model, testing::kSmallModels.at(model), change);
  }

  Config config(const std::filesystem::path& model, int ranks, std::vector<std::string> overrides = {},
                const std::string& name = "run") {
    const Json json = {
        {"train_batch_size", 12},
        {"zero_optimization", {{"stage", 3}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
        {"model", {{"from", model}}},
        {"data", {{"train", small_.path() / "train.tokens"}, {"eval", small_.path() / "eval.tokens"}}},
        {"parallel", {{"timeout_s", 30}}},
        {"run", {{"directory", small_.path() / name}, {"steps", 2}, {"seed", 3}, {"eval_batches", 4}}}};
    return resolve(adopt_model(parse_config(json.dump(), "small", overrides)), ranks);
  }

  using Json = nlohmann::json;
  testing::TemporaryDirectory directory_;
  SmallRun small_;
};

// Counts what a rank reads.
class CountingValues : public InitialValues {
 public:
  explicit CountingValues(std::shared_ptr<const InitialValues> values) : values_(std::move(values)) {}
  bool holds(const std::string& name) const override { return values_->holds(name); }
  void read(const std::string& name, const BoxRange& range, at::Tensor out) const override {
    numel += out.numel();
    largest = std::max(largest, out.numel());
    values_->read(name, range, out);
  }
  mutable int64_t numel = 0, largest = 0;

 private:
  std::shared_ptr<const InitialValues> values_;
};

TEST_F(FromHf, EveryStageStartsFromTheDirectorysValues) {
  for (const auto& [name, section] : testing::kSmallModels) {
    const auto model_directory = directory_of(name);
    for (const int ranks : {1, 3}) {
      run_ranks(ranks, [&](const Mesh& mesh) {
        for (int stage = 0; stage <= 3; ++stage) {
          for (const std::vector<std::string>& more :
               {std::vector<std::string>{"residency.share=true"},
                {"residency.share=false"},
                {"bf16.enabled=true"},
                {"bf16.enabled=true", "residency.split_master=false"}}) {
            std::vector<std::string> settings{"zero_optimization.stage=" + std::to_string(stage)};
            settings.insert(settings.end(), more.begin(), more.end());
            const Config c = config(model_directory, mesh.size(), settings);
            const auto model = lazily([&] { return make_language_model(shape_of(c)); });
            const auto values = std::make_shared<CountingValues>(training::file_values_of(c));
            EngineOptions options = engine_options_of(c, mesh.size());
            options.initial_values = values;
            Engine engine(*model, optimizer_of(c), options, mesh);
            for (const auto& parameter : engine.parameter_names()) {
              // The masters, whatever the compute type: not rounded on the way, but for the last bit of split
              // ones.
              const at::Tensor full = engine.full_parameter(parameter);
              const at::Tensor expected = golden::initial_value(parameter, full.sizes());
              const bool split = more == std::vector<std::string>{"bf16.enabled=true"};
              EXPECT_TRUE(split ? at::allclose(full, expected, 0x1p-23, 0) : at::equal(full, expected))
                  << parameter << " " << more.back();
            }
            int64_t kept = 0, whole = 0;
            for (const UnitLayout& unit : engine.plan().units) {
              kept += unit.shard_numel;
              whole += unit.numel;
            }
            const bool replicated = engine.plan().placements.parameter == Placement::Replicate || ranks == 1;
            EXPECT_LE(values->numel, replicated ? whole : kept) << name << stage << more.back();
            EXPECT_LE(values->largest, 1 << 20);
          }
        }
      });
    }
  }
}

TEST_F(FromHf, TrainsEveryArchitecture) {
  for (const auto& [name, section] : testing::kSmallModels) {
    const auto model_directory = directory_of(name);
    const SavedModel saved = find_model(model_directory);
    EXPECT_TRUE(saved.hugging_face);
    EXPECT_EQ(saved.end_tokens, std::vector<int64_t>{63});
    // A rate of 0: the evaluation at the end is still of the directory's values.
    train_on(2, config(model_directory, 2, {"optimizer.params.lr=0", "run.eval_batches=100", "run.steps=1"},
                       name));
    const double expected = metrics_of(small_.path() / name).back()["eval_loss"].get<double>();
    run_ranks(1, [&](const Mesh& mesh) {
      const auto model = load_model(saved);
      model->eval();
      const EvalResult found = evaluate(
          [&](const auto& tokens, const auto& targets) { return model->loss(tokens, targets); },
          TokenFile::open(small_.path() / "eval.tokens"), {.sequence_length = 8, .batch_size = 4}, mesh);
      EXPECT_NEAR(found.loss, expected, 1e-5) << name;
    });
    // A checkpoint stands for itself: the directory is not looked at again.
    std::filesystem::remove_all(model_directory);
    const auto back = load_model(find_model(small_.path() / name));
    for (const auto& p : back->named_parameters())
      EXPECT_TRUE(at::equal(p.value(), golden::initial_value(p.key(), p.value().sizes()))) << p.key();
  }
}

TEST_F(FromHf, AllThatIsWrongIsToldOnAllRanksBeforeAnythingIsAllocated) {
  const auto model_directory = directory_of("llama", [](std::vector<FileTensor>& tensors) {
    tensors[0].tensor.name = "model.other.weight";
    tensors[1].tensor.shape = {tensors[1].tensor.shape[1], tensors[1].tensor.shape[0] / 2, 2};
  });
  const Config c = config(model_directory, 3);
  EXPECT_ERROR(check_run(c, 3), Config,
               "missing: model.embed_tokens.weight; not the model's: \"model.other.weight\"; of "
               "another shape: model.layers.0.self_attn.q_proj.weight [16, 8, 2] instead of [16, 16]");
  for (const auto& result : testing::collect_ranks(3, [&](const Mesh& mesh) { train(c, mesh); })) {
    EXPECT_NE(result.error.find("missing: model.embed_tokens.weight"), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("another shape: model.layers.0.self_attn.q_proj"), std::string::npos)
        << result.error;
  }
}

// Under stage 3 the scope gathers each unit once, however many tokens are made.
TEST_F(FromHf, GenerationGathersOncePerScope) {
  const auto model_directory = directory_of("llama");
  std::vector<int64_t> expected;
  const std::vector<int64_t> prompt{1, 2};
  const GenerateOptions options{.max_new_tokens = 5, .temperature = 0};
  {
    const auto model = load_model(find_model(model_directory));
    model->eval();
    expected = generate_tokens(*model, prompt, options);
  }
  run_ranks(2, [&](const Mesh& mesh) {
    const Config c = config(model_directory, 2, {"residency.share=false"});
    const auto model = lazily([&] { return make_language_model(shape_of(c)); });
    EngineOptions engine_options = engine_options_of(c, 2);
    engine_options.initial_values = training::file_values_of(c);
    Engine engine(*model, optimizer_of(c), engine_options, mesh);
    model->eval();
    const int64_t before = engine.stats().all_gathers;
    {
      GatherScope scope(engine);
      EXPECT_EQ(generate_tokens(*model, prompt, options), expected);
    }
    EXPECT_EQ(engine.stats().all_gathers - before, std::ssize(engine.plan().units));
  });
}

TEST_F(FromHf, OnlyAdaptersChangeAndPeftFindsThem) {
  const std::map<std::string, std::pair<std::string, std::string>> layers{
      {"gpt2", {"*.c_attn", "base_model.model.transformer.h.1.attn.c_attn.lora_A.weight"}},
      {"llama", {"*.q_proj", "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"}},
      {"neox", {"*.dense", "base_model.model.gpt_neox.layers.1.attention.dense.lora_A.weight"}}};
  for (const auto& [name, layer] : layers) {
    const auto model_directory = directory_of(name);
    const std::vector<std::string> adapted{"lora.rank=2", "lora.alpha=6",
                                           "lora.targets=[\"" + layer.first + "\"]"};
    train_on(2, config(model_directory, 2, adapted, name));
    const auto trained = load_model(find_model(small_.path() / name));
    int changed = 0;
    for (const auto& p : trained->named_parameters()) {
      const bool adapter = p.key().ends_with(".lora_B.weight") || p.key().ends_with(".lora_A.weight");
      if (adapter) changed += p.value().count_nonzero().item<int64_t>() > 0;
      if (!adapter) {
        EXPECT_TRUE(at::equal(p.value(), golden::initial_value(p.key(), p.value().sizes()))) << p.key();
      }
    }
    EXPECT_EQ(changed, 4) << name;

    const auto adapter = small_.path() / name / "adapter";
    const auto written = Json::parse(testing::read_bytes(adapter / "adapter_config.json"));
    EXPECT_EQ(written.at("peft_type"), "LORA");
    EXPECT_EQ(written.at("r"), 2);
    EXPECT_EQ(written.at("lora_alpha"), 6);
    EXPECT_EQ(written.at("fan_in_fan_out"), name == "gpt2");
    EXPECT_EQ(written.at("target_modules").size(), 2u);
    const hf::Weights weights(adapter, "adapter_model");
    EXPECT_EQ(weights.names().size(), 4u);
    ASSERT_NE(weights.find(layer.second), nullptr) << name;
    EXPECT_EQ(weights.find(layer.second)->shape, (std::vector<int64_t>{2, 16}));

    // Taken up again: at a rate of 0 the adapters stay what they were.
    auto again = adapted;
    again.push_back("lora.from=" + adapter.string());
    again.push_back("optimizer.params.lr=0");
    train_on(3, config(model_directory, 3, again, name + "-again"));
    const auto loaded = load_model(find_model(small_.path() / (name + "-again")));
    for (const auto& p : loaded->named_parameters())
      EXPECT_TRUE(at::equal(p.value(), trained->named_parameters()[p.key()])) << p.key();
    again[0] = "lora.rank=3";
    EXPECT_ERROR(check_run(config(model_directory, 1, again, "other"), 1), Config,
                 "r: expected lora.rank 3, got 2");
  }
}

// A checkpoint of adapters alone: resumed and loaded, it takes the rest from the directory, and only from
// that one.
TEST_F(FromHf, WhatACheckpointLeavesOutComesFromTheDirectory) {
  const auto model_directory = directory_of("llama");
  std::vector<std::string> overrides{"lora.rank=2", "lora.targets=[\"*.q_proj\"]", "run.steps=4"};
  train_on(2, config(model_directory, 2, overrides, "whole"));
  overrides.push_back("checkpoint.trainable_only=true");
  overrides.push_back("checkpoint.interval_steps=2");
  overrides.push_back("checkpoint.keep_last=0");
  train_on(2, config(model_directory, 2, overrides, "parts"));
  const auto half = small_.path() / "parts/checkpoints/step-00000002";
  train_on(2, config(model_directory, 2, overrides, "resumed"), {.resume = half.string()});
  const auto whole = load_model(find_model(small_.path() / "whole"));
  for (const char* run : {"parts", "resumed"}) {
    const auto loaded = load_model(find_model(small_.path() / run));
    for (const auto& p : loaded->named_parameters())
      EXPECT_TRUE(at::equal(p.value(), whole->named_parameters()[p.key()])) << run << " " << p.key();
  }
  directory_of("llama", [](std::vector<FileTensor>& tensors) { tensors[3].bytes[0] ^= 1; });
  EXPECT_ERROR(load_model(find_model(small_.path() / "parts")), Config, "is not the one that");
}

// From a checkpoint of what is trained alone, a model directory byte for byte as from a whole one.
TEST_F(FromHf, ConsolidatesWhatACheckpointLeavesOut) {
  const std::map<std::string, std::vector<std::string>> runs = {
      {"gpt2", {"lora.rank=2", "lora.targets=[\"*.c_attn\"]"}},
      {"llama", {"lora.rank=2", "lora.targets=[\"*.q_proj\"]", "bf16.enabled=true"}},
      {"neox", {"trainable=[\"*.dense.*\"]", "bf16.enabled=true"}}};
  const ConsolidateOptions merged{.most_file_bytes = 8192, .merge_adapters = true};
  for (const auto& [name, overrides] : runs) {
    const auto model_directory = directory_of(name);
    std::vector<Consolidated> made;
    for (const char* kind : {"whole", "part"}) {
      auto all = overrides;
      all.push_back(std::string("checkpoint.trainable_only=") +
                    (kind == std::string("part") ? "true" : "false"));
      train_on(2, config(model_directory, 2, all, name + "-" + kind));
      made.push_back(consolidate(find_checkpoint(small_.path() / (name + "-" + kind)),
                                 small_.path() / (name + "-" + kind + "-out"), merged));
    }
    EXPECT_EQ(made[0].files, made[1].files) << name;
    EXPECT_GT(made[0].files.size(), 3U) << name << ": several files of weights";
    for (const std::string& file : made[0].files)
      EXPECT_TRUE(testing::read_bytes(small_.path() / (name + "-whole-out") / file) ==
                  testing::read_bytes(small_.path() / (name + "-part-out") / file))
          << name << " " << file;
  }

  const auto part = find_checkpoint(small_.path() / "llama-part"), out = small_.path() / "out";
  const auto with = [&](const std::filesystem::path& from) {
    ConsolidateOptions options = merged;
    options.from = from;
    return options;
  };
  const auto whole = find_checkpoint(small_.path() / "llama-whole");
  consolidate(whole, small_.path() / "carried", with(directory_of("llama")));
  EXPECT_EQ(testing::read_bytes(small_.path() / "carried/config.json"),
            testing::read_bytes(small_.path() / "llama-whole-out/config.json"));
  EXPECT_ERROR(consolidate(whole, out, with(small_.path() / "gone")), Config,
               "training began with a model directory there");
  EXPECT_ERROR(consolidate(part, out, with(directory_of("neox"))), Config, "not those of the model");
  directory_of("llama", [](std::vector<FileTensor>& tensors) { tensors[3].bytes[2] ^= 1; });
  EXPECT_ERROR(consolidate(part, out, merged), Config, "is not the one that");
  EXPECT_FALSE(std::filesystem::exists(out)) << "found while files were being written";
}

TEST_F(FromHf, OnlyTheNamedParametersAreTrained) {
  const auto model_directory = directory_of("neox");
  train_on(2, config(model_directory, 2, {"trainable=[\"*.dense.*\"]", "frozen=[\"gpt_neox.layers.0.*\"]"}));
  const auto trained = load_model(find_model(small_.path() / "run"));
  std::set<std::string> changed;
  for (const auto& p : trained->named_parameters())
    if (!at::equal(p.value(), golden::initial_value(p.key(), p.value().sizes()))) changed.insert(p.key());
  EXPECT_EQ(changed, (std::set<std::string>{"gpt_neox.layers.1.attention.dense.bias",
                                            "gpt_neox.layers.1.attention.dense.weight"}));
}

// Frozen parameters have neither master copy nor optimizer state, and are sharded; the plan says so too.
TEST_F(FromHf, MemoryOfAdaptersIsThePlans) {
  const auto model_directory = directory_of("llama");
  const Config c =
      config(model_directory, 2,
             {"lora.rank=2", "lora.targets=[\"*.q_proj\"]", "bf16.enabled=true", "residency.share=false"});
  run_ranks(2, [&](const Mesh& mesh) {
    const auto model = lazily([&] { return make_language_model(shape_of(c)); });
    lazily([&] { return add_adapters(*model, c.lora); });
    freeze(*model, c);
    EngineOptions options = engine_options_of(c, 2);
    options.initial_values = training::file_values_of(c);
    Engine engine(*model, optimizer_of(c), options, mesh);
    int64_t trained = 0, all = 0;
    for (const UnitLayout& unit : engine.plan().units) {
      all += unit.shard_numel;
      if (unit.trainable) trained += unit.shard_numel;
    }
    EXPECT_EQ(engine.plan().rank.parameter_bytes, 2 * all);
    EXPECT_EQ(engine.plan().rank.master_bytes, 2 * trained);
    EXPECT_EQ(engine.plan().rank.optimizer_bytes, 8 * trained);
    EXPECT_LT(4 * trained, all);
    const RankPlan planned = plan_from_config(c, trained_spec(c), 2).stages[3].rank;
    EXPECT_EQ(planned.state_bytes(), engine.plan().rank.state_bytes());
    EXPECT_EQ(planned.gather_window_bytes, engine.plan().rank.gather_window_bytes);
  });
}

// 83 million parameters of zeros, 333 MB, in a file without blocks: no rank may hold more than its part of
// them.
TEST_F(FromHf, NoRankHoldsTheWholeModel) {
  if (testing::kIsSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  const std::string section =
      R"({"type": "llama", "vocab_size": 4000, "context_length": 8, "layers": 24, "width": 512,
                                  "heads": 8, "mlp_width": 1408, "tied_head": true})";
  const Config shape = parse_config("{\"train_batch_size\": 1, \"model\": " + section + "}");
  std::vector<hf::NewTensor> header;
  int64_t bytes = 0;
  const std::function<void(const ModuleSpec&)> add = [&](const ModuleSpec& module) {
    for (const ParameterSpec& parameter : module.parameters) {
      header.push_back({hf::hf_name(shape.model, parameter.name), Dtype::f32, parameter.shape});
      bytes += hf::data_bytes(header.back());
    }
    for (const ModuleSpec& child : module.children) add(child);
  };
  add(model_spec(shape_of(shape)));
  const std::string text = hf::safetensors_header(header);
  directory_.write("large/config.json", hf::config_text(shape.model, Dtype::f32));
  const auto file = directory_.write("large/model.safetensors", text);
  std::filesystem::resize_file(file, text.size() + static_cast<uint64_t>(bytes));
  const Config c =
      config(file.parent_path(), 2, {"lora.rank=2", "lora.targets=[\"*.q_proj\"]", "residency.share=false"});
  run_ranks(2, [&](const Mesh& mesh) {
    const auto model = lazily([&] { return make_language_model(shape_of(c)); });
    lazily([&] { return add_adapters(*model, c.lora); });
    freeze(*model, c);
    EngineOptions options = engine_options_of(c, 2);
    options.initial_values = training::file_values_of(c);
    const int64_t before = training::process_memory().resident_bytes;
    Engine engine(*model, optimizer_of(c), options, mesh);
    const int64_t more = training::process_memory().peak_resident_bytes - before;
    int64_t largest = 0;
    for (const UnitLayout& unit : engine.plan().units) largest = std::max(largest, unit.slab_bytes());
    const int64_t allowed = engine.plan().rank.state_bytes() + largest + (int64_t{64} << 20);
    EXPECT_LE(more, allowed);
    EXPECT_LT(allowed, bytes) << "the test would pass with a copy of the model";
  });
}

}  // namespace
}  // namespace zero
