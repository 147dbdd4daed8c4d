#pragma once
// A run of a tiny GPT-2 on made-up tokens, in a directory of its own.

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/token_file.h"
#include "zero/train.h"

namespace zero::testing {

inline const Vocabulary kRunVocabulary{.size = 64, .fingerprint = 0x1234};

/// `count` ids that a model can learn something of: mostly the last id plus 3, now and then another.
inline void write_tokens(const std::filesystem::path& path, int64_t count,
                         const Vocabulary& vocabulary = kRunVocabulary) {
  TokenFileWriter writer(path, vocabulary);
  uint64_t state = 7;
  int32_t id = 0;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((state >> 33) % 5 == 0 ? (state >> 40) % 60 : (id + 3) % 60);
    ids.push_back(id);
  }
  writer.append(ids);
  writer.publish();
}

class SmallRun {
 public:
  SmallRun() {
    write_tokens(path() / "train.tokens", 900);
    write_tokens(path() / "eval.tokens", 8 * 17 + 5);  // 17 samples
  }

  const std::filesystem::path& path() const { return directory_.path(); }

  /// Overrides as for --set; `name`: the run's directory.
  Config config(int ranks, std::vector<std::string> overrides = {}, const std::string& name = "run") const {
    const nlohmann::json json = {
        {"train_batch_size", 12},
        {"zero_optimization", {{"stage", 3}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
        {"scheduler", {{"type", "Cosine"}, {"params", {{"warmup_steps", 2}, {"total_steps", 20}}}}},
        {"model",
         {{"vocab_size", 64},
          {"context_length", 8},
          {"layers", 2},
          {"width", 16},
          {"heads", 2},
          {"dropout", 0.1}}},
        {"data", {{"train", path() / "train.tokens"}, {"eval", path() / "eval.tokens"}}},
        {"parallel", {{"timeout_s", 30}}},
        {"run", {{"directory", path() / name}, {"steps", 6}, {"seed", 3}, {"eval_batches", 4}}}};
    return resolve(parse_config(json.dump(), "small", overrides), ranks);
  }

 private:
  TemporaryDirectory directory_;
};

/// Trains on so many ranks; fails the test with what any of them has to say.
inline void train_on(int ranks, const Config& config, const TrainOptions& options = {}) {
  run_ranks(ranks, [&](const Mesh& mesh) { train(config, mesh, options); });
}

/// The lines of a run's metrics file.
inline std::vector<nlohmann::json> metrics_of(const std::filesystem::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// What does not depend on the clock or the machine, line by line.
inline std::vector<std::string> course_of(const std::filesystem::path& run) {
  std::vector<std::string> course;
  for (nlohmann::json line : metrics_of(run)) {
    for (const char* key :
         {"tokens_per_s", "step_s", "forward_s", "backward_s", "optimizer_s", "waited_s", "waited_share",
          "resident_bytes", "peak_resident_bytes", "slab_bytes", "peak_slab_bytes", "memory", "disk"})
      line.erase(key);
    course.push_back(line.dump());
  }
  return course;
}

inline std::vector<double> losses_of(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : metrics_of(run))
    if (line.contains("loss")) losses.push_back(line["loss"].get<double>());
  return losses;
}

/// All values of all tensors of a run's newest checkpoint.
inline std::map<std::string, std::string> newest_values(const std::filesystem::path& run) {
  const CheckpointReader reader(latest_checkpoint(run / "checkpoints"));
  std::map<std::string, std::string> values;
  for (const auto& [name, tensor] : reader.tensors()) {
    const BoxRange whole = BoxRange::whole(tensor.shape);
    std::string& bytes = values[name];
    bytes.resize(static_cast<size_t>(whole.numel * itemsize(tensor.dtype)));
    reader.read(name, whole, bytes.data());
  }
  return values;
}

}  // namespace zero::testing
