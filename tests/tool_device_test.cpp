// `zero train`, `eval` and `generate` with --device virtual: what a CPU's run gives, bit for bit, and what
// only a device tells.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/checkpoint_files.h"
#include "support/program.h"
#include "support/temporary_directory.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Program;
using testing::ProgramResult;

constexpr const char* kSmallRun = R"({
  "train_batch_size": 4,
  "zero_optimization": {"stage": 3},
  "gradient_clipping": 0.5,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"vocab_size": 2000, "context_length": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1},
  "data": {"train": "train.tokens", "eval": "eval.tokens", "tokenizer": "tokenizer"},
  "parallel": {"timeout_s": 60, "threads_per_rank": 1},
  "cpu_operators": false,
  "checkpoint": {"interval_steps": 2, "keep_last": 0},
  "run": {"directory": "run", "steps": 4, "seed": 1},
}
)";

class ToolOnVirtualDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(path() / "tokenizer");
    fs::copy_file(fs::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json",
                  path() / "tokenizer/tokenizer.json");
    std::string text;
    for (int i = 0; i < 400; ++i)
      text +=
          "Line " + std::to_string(i) + ": the clocks were striking " + std::to_string(i * 7 % 13) + ".\n";
    folder_.write("text.txt", text);
    folder_.write("train.json", kSmallRun);
    good({"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", "train.tokens", "--held-out",
          "eval.tokens", "--held-out-fraction", "0.1"});
  }

  fs::path path() const { return folder_.path(); }

  ProgramResult zero(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), ZERO_TOOL);
    return Program(arguments, {.directory = path()}).wait();
  }
  std::string good(std::vector<std::string> arguments) const {
    const ProgramResult result = zero(std::move(arguments));
    EXPECT_EQ(result.exit, 0) << result.all();
    return result.output;
  }
  void train(const std::string& run, const std::string& device, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"train", "train.json", "--run-dir", run, "--device", device};
    arguments.insert(arguments.end(), more.begin(), more.end());
    good(arguments);
  }

  std::vector<json> metrics(const std::string& run) const {
    std::vector<json> all;
    std::ifstream file(path() / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }
  /// What training gave, in every line: not how long it took, nor where.
  std::vector<json> values(const std::string& run) const {
    std::vector<json> all;
    for (const json& line : metrics(run)) {
      json kept;
      for (const char* key : {"step", "loss", "lr", "grad_norm", "clip_coefficient", "tokens", "skipped",
                              "eval_loss", "eval_tokens"})
        if (line.contains(key)) kept[key] = line[key];
      all.push_back(kept);
    }
    return all;
  }
  /// All tensors of a checkpoint but the states of generators, of which a device adds one.
  testing::Tensors saved(const std::string& run, int step) const {
    testing::Tensors tensors =
        testing::read_all(path() / run / "checkpoints" / ("step-0000000" + std::to_string(step)));
    std::erase_if(tensors, [](const auto& item) { return item.first.find("random") != std::string::npos; });
    return tensors;
  }

  testing::TemporaryDirectory folder_;
};

TEST_F(ToolOnVirtualDevice, RunsAreTheCpusBitForBit) {
  for (const std::string ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks + " ranks");
    const std::string host = "host" + ranks, device = "device" + ranks;
    train(host, "auto", {"--ranks", ranks});
    train(device, "virtual", {"--ranks", ranks, "--set", "run.steps=3"});
    train(device, "virtual", {"--ranks", ranks, "--resume", "auto"});
    // The run that stopped after its third step has evaluated there.
    std::vector<json> of_device = values(device);
    std::erase_if(of_device,
                  [](const json& line) { return line.contains("eval_loss") && line["step"] == 3; });
    EXPECT_EQ(of_device, values(host));
    EXPECT_EQ(values(host).size(), 5);
    for (const int step : {2, 4}) {
      const testing::Tensors expected = saved(host, step);
      EXPECT_GT(expected.size(), 10);
      EXPECT_TRUE(testing::same(saved(device, step), expected)) << "step " << step;
    }
    if (ranks == "1") continue;
    const auto eval_on = [&](const std::string& where) {
      return json::parse(
          good({"eval", host, "--data", "eval.tokens", "--json", "--ranks", ranks, "--device", where}));
    };
    EXPECT_EQ(eval_on("virtual"), eval_on("auto"));
    const auto text_on = [&](const std::string& where) {
      return good({"generate", host, "--prompt", "The clocks", "--tokens", "12", "--seed", "5", "--ranks",
                   ranks, "--device", where});
    };
    EXPECT_EQ(text_on("virtual"), text_on("auto"));
  }
}

TEST_F(ToolOnVirtualDevice, MetricsTellSimulatedTimeAndMemory) {
  const std::vector<std::string> once{"--ranks", "2", "--set", "run.steps=3"};
  train("run", "virtual", once);
  train("again", "virtual:" + (fs::path(ZERO_TEST_DATA) / "../configs/devices/h100-sxm.json").string(), once);
  const std::vector<json> first = metrics("run"), second = metrics("again");
  ASSERT_GE(first.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(first[i].at("simulated_ms"), 0);
    EXPECT_EQ(first[i].at("simulated_ms"), second[i].at("simulated_ms")) << "to the last digit";
    int64_t sum = 0;
    for (const auto& [purpose, bytes] : first[i].at("device_peak_bytes_by_purpose").items())
      sum += bytes.get<int64_t>();
    EXPECT_GT(first[i].at("device_peak_bytes"), 0);
    EXPECT_GE(sum, first[i].at("device_peak_bytes").get<int64_t>());
  }
  EXPECT_EQ(first[1].at("simulated_ms"), first[2].at("simulated_ms")) << "steady steps are alike";
}

TEST_F(ToolOnVirtualDevice, BenchTellsTheSimulatedStep) {
  const auto bench = [&](const std::string& device) {
    return json::parse(
        good({"bench", "step", "--model", "tiny", "--steps", "3", "--warmup", "1", "--seq", "16", "--dtype",
              "fp32", "--ranks", "2", "--json", "--operators", "libtorch", "--device", device}));
  };
  const json record = bench("virtual"), again = bench("virtual"), host = bench("auto");
  EXPECT_EQ(record["loss"], host["loss"]);
  EXPECT_GT(record["simulated_step_s"], 0);
  EXPECT_GE(record["exposed_communication_s"], 0);
  EXPECT_LT(record["exposed_communication_s"], record["simulated_step_s"]);
  for (const char* field : {"simulated_step_s", "exposed_communication_s", "device_peak_bytes_by_purpose"})
    EXPECT_EQ(record[field], again[field]) << field;
  EXPECT_GT(record["device_peak_bytes"], 0);
  EXPECT_FALSE(host.contains("simulated_step_s"));
}

// Every row has a name, in each the spans follow one another, and collectives overlap with computing.
TEST_F(ToolOnVirtualDevice, ATraceShowsTheDevicesStreams) {
  train("run", "virtual", {"--ranks", "2", "--trace", "trace.json"});
  std::ifstream file(path() / "trace.json");
  const json events = json::parse(file).at("traceEvents");
  for (const int rank : {0, 1}) {
    const int process = 2 + rank;
    std::map<int, std::string> rows;
    std::map<int, double> ends;
    std::vector<std::pair<double, double>> kernels, collectives;
    std::set<std::string> kinds;
    std::string name;
    for (const json& event : events) {
      if (event.at("pid") != process) continue;
      const int row = event.value("tid", -1);
      if (event.at("name") == "thread_name") rows[row] = event.at("args").at("name");
      if (event.at("name") == "process_name") name = event.at("args").at("name");
      if (event.at("ph") != "X") continue;
      const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
      ASSERT_TRUE(rows.contains(row)) << event;
      EXPECT_GE(begin, ends[row] - 1e-3) << rows[row] << ": " << event;
      ends[row] = end;
      const std::string kind = rows[row].substr(0, rows[row].find(','));
      kinds.insert(kind);
      if (kind == "compute") kernels.emplace_back(begin, end);
      if (kind == "all-gathers" || kind == "reduce-scatters") collectives.emplace_back(begin, end);
    }
    EXPECT_EQ(name, "rank " + std::to_string(rank) + " simulated, virtual:0");
    for (const char* kind :
         {"compute", "copies to device", "copies to host", "all-gathers", "reduce-scatters"})
      EXPECT_TRUE(kinds.contains(kind)) << kind;
    const bool overlaps = std::any_of(collectives.begin(), collectives.end(), [&](const auto& collective) {
      return std::any_of(kernels.begin(), kernels.end(), [&](const auto& kernel) {
        return kernel.first < collective.second && collective.first < kernel.second;
      });
    });
    EXPECT_TRUE(overlaps);
  }
  // The engine's own rows begin where the simulated ones do.
  for (const json& event : events)
    if (event.contains("ts")) {
      EXPECT_LT(event.at("ts"), 600e6) << event;
    }
}

TEST_F(ToolOnVirtualDevice, RefusesDevicesThatAreNone) {
  folder_.write("broken.json", R"({"name": "n"})");
  for (const auto& [device, part] :
       std::map<std::string, std::string>{{"tpu", "expected auto, cuda, virtual or virtual:FILE"},
                                          {"virtual:nowhere.json", "nowhere.json"},
                                          {"virtual:broken.json", "broken.json"}}) {
    const ProgramResult result = zero({"train", "train.json", "--device", device});
    EXPECT_NE(result.exit, 0);
    EXPECT_NE(result.error.find(part), std::string::npos) << result.all();
    EXPECT_FALSE(fs::exists(path() / "run"));
  }
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"eval", "run", "--data", "eval.tokens", "--device", "tpu"},
        {"generate", "run", "--prompt", "a", "--device", "tpu"}}) {
    const ProgramResult result = zero(verb);
    EXPECT_NE(result.exit, 0);
    EXPECT_NE(result.error.find("expected auto, cuda, virtual or virtual:FILE"), std::string::npos)
        << result.all();
  }
}

}  // namespace
}  // namespace zero
