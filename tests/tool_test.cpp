// The `zero` program as its users meet it: text to tokens to a trained model, and what it says when something
// is wrong.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "support/temporary_directory.h"
#include "support/tool_program.h"
#include "tool/ports.h"
#include "tool/text.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::Program;
using testing::ProgramOptions;
using testing::ProgramResult;
using testing::read_bytes;
using testing::some_text;
using testing::zero_in;

constexpr const char* kConfig = R"({
  "train_batch_size": 4,
  "zero_optimization": {"stage": 3},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"vocab_size": 2000, "context_length": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1},
  "data": {"train": "train.tokens", "eval": "eval.tokens", "tokenizer": "tokenizer"},
  "parallel": {"timeout_s": 30, "threads_per_rank": 1},
  "checkpoint": {"interval_steps": 2, "keep_last": 0},
  "run": {"directory": "run", "steps": 4, "seed": 1},
}
)";

/// A folder with a text, its tokens and a configuration, made once; every test gets a copy.
class Tool : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<testing::TemporaryDirectory>();
    fs::create_directories(made_->path() / "tokenizer");
    fs::copy_file(fs::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json",
                  made_->path() / "tokenizer/tokenizer.json");
    made_->write("text.txt", some_text());
    made_->write("train.json", kConfig);
    const ProgramResult result =
        zero_in(made_->path(), {"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", "train.tokens",
                                "--held-out", "eval.tokens", "--held-out-fraction", "0.1"});
    ASSERT_EQ(result.exit, 0) << result.all();
    ASSERT_NE(result.output.find("train.tokens: "), std::string::npos) << result.output;
    ASSERT_NE(result.output.find("eval.tokens: "), std::string::npos) << result.output;
  }
  static void TearDownTestSuite() { made_.reset(); }

  void SetUp() override { fs::copy(made_->path(), path(), fs::copy_options::recursive); }

  fs::path path() const { return folder_.path() / "work"; }

  ProgramResult zero(std::vector<std::string> arguments, const ProgramOptions& options = {}) const {
    return zero_in(path(), std::move(arguments), options);
  }
  ProgramResult good(std::vector<std::string> arguments) const {
    ProgramResult result = zero(std::move(arguments));
    EXPECT_EQ(result.exit, 0) << result.all();
    return result;
  }

  /// It fails with one line "zero: ..." that has all the parts.
  void expect_refused(std::vector<std::string> arguments, const std::vector<std::string>& parts,
                      const ProgramOptions& options = {}) const {
    const ProgramResult result = zero(std::move(arguments), options);
    EXPECT_NE(result.exit, 0) << result.all();
    EXPECT_LT(result.exit, 128) << result.all();
    std::string line;
    std::istringstream lines(result.error);
    int said = 0;
    for (std::string next; std::getline(lines, next);)
      if (next.starts_with("zero: ") && !next.starts_with("zero: note: ")) {
        line = next;
        ++said;
      }
    EXPECT_EQ(said, 1) << result.all();
    for (const std::string& part : parts)
      EXPECT_NE(line.find(part), std::string::npos) << part << " in: " << line;
  }

  std::vector<nlohmann::json> metrics(const std::string& run = "run") const {
    std::vector<nlohmann::json> all;
    std::istringstream lines(read_bytes(path() / run / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  std::vector<double> losses(const std::string& run = "run") const {
    std::vector<double> all;
    for (const auto& line : metrics(run))
      if (line.contains("loss")) all.push_back(line["loss"].get<double>());
    return all;
  }
  void write(const std::string& name, std::string_view bytes) const {
    fs::create_directories((path() / name).parent_path());
    std::ofstream(path() / name, std::ios::binary) << bytes;
  }

 private:
  static std::unique_ptr<testing::TemporaryDirectory> made_;
  testing::TemporaryDirectory folder_;
};
std::unique_ptr<testing::TemporaryDirectory> Tool::made_;

TEST_F(Tool, ATraceShowsEveryRanksStepsUnitsAndCollectives) {
  good({"train", "train.json", "--ranks", "2", "--trace", "trace.json"});
  const auto events = nlohmann::json::parse(read_bytes(path() / "trace.json")).at("traceEvents");
  for (const int rank : {0, 1}) {
    std::map<std::string, int> spans, begins, ends;
    for (const auto& event : events) {
      if (event.at("pid") != rank) continue;
      const std::string phase = event.at("ph"), name = event.at("name");
      if (phase == "X") ++spans[name];
      if (phase == "b") ++begins[name];
      if (phase == "e") ++ends[name];
    }
    EXPECT_EQ(spans["step"], 4) << "rank " << rank;
    EXPECT_EQ(spans["backward"], 4);
    EXPECT_GE(spans["forward"], 4);
    EXPECT_GE(spans["h.0"], 8);
    EXPECT_EQ(spans["update"], 4);
    EXPECT_EQ(begins, ends);
    EXPECT_GE(begins["all_gather h.0"], 4);
    // A bucket is named after its first unit, and the whole of this model fits into one.
    const auto reduced = std::find_if(begins.begin(), begins.end(), [](const auto& entry) {
      return entry.first.starts_with("reduce_scatter ");
    });
    ASSERT_NE(reduced, begins.end());
    EXPECT_EQ(reduced->second, 4);
  }
  expect_refused({"train", "train.json", "--trace", "nowhere/trace.json"},
                 {"nowhere/trace.json", "nowhere is not a directory"});
  expect_refused({"train", "train.json", "--trace", "train.json"},
                 {"train.json", "it exists and is not a trace"});
  EXPECT_EQ(read_bytes(path() / "train.json"), kConfig);
  for (const auto& line : metrics())
    if (line.contains("waited_share")) {
      EXPECT_GE(line.at("waited_share").get<double>(), 0);
      EXPECT_LE(line.at("waited_share").get<double>(), 1);
    }
}

TEST_F(Tool, TrainsEvaluatesAndGenerates) {
  const ProgramResult trained = good({"train", "train.json", "--ranks", "2"});
  EXPECT_NE(trained.output.find("step 4/4  loss "), std::string::npos) << trained.all();
  EXPECT_NE(trained.output.find("done: 4 steps"), std::string::npos) << trained.all();
  ASSERT_EQ(losses().size(), 4);
  EXPECT_TRUE(fs::exists(path() / "run/config.json"));

  const auto json = nlohmann::json::parse(good({"eval", "run", "--data", "eval.tokens", "--json"}).output);
  const nlohmann::json last = metrics().back();
  EXPECT_EQ(json["step"], 4);
  EXPECT_GT(json["tokens"].get<int64_t>(), 100);
  // A run evaluates up to 16 batches a rank, which is all there is here.
  EXPECT_EQ(json["tokens"], last["eval_tokens"]);
  EXPECT_NEAR(json["loss"].get<double>(), last["eval_loss"].get<double>(), 1e-4);
  const auto two = nlohmann::json::parse(
      good({"eval", "run/checkpoints/step-00000004", "--data", "eval.tokens", "--json", "--ranks", "2"})
          .output);
  EXPECT_EQ(two["tokens"], json["tokens"]);
  EXPECT_NEAR(two["loss"].get<double>(), json["loss"].get<double>(), 1e-5);
  const ProgramResult few = good({"eval", "run", "--data", "eval.tokens", "--batches", "1"});
  EXPECT_NE(few.output.find("tokens 32 "), std::string::npos) << few.output;  // 2 samples of 16

  const std::vector<std::string> generate = {"generate", "run", "--prompt", "The clocks",
                                             "--tokens", "30",  "--seed",   "5"};
  const std::string text = good(generate).output;
  EXPECT_TRUE(text.starts_with("The clocks")) << text;
  EXPECT_GT(text.size(), std::string("The clocks\n").size());
  EXPECT_FALSE(find_invalid_utf8(text));
  EXPECT_EQ(good(generate).output, text);
  EXPECT_EQ(good({"generate", "run", "--prompt", "The clocks", "--tokens", "0"}).output, "The clocks\n");
}

TEST_F(Tool, ARunIsTheSameFromEveryDirectory) {
  good({"train", "train.json"});
  const std::string run = (path() / "run").string();
  const std::vector<std::string> rest = {"--prompt", "The clocks", "--tokens", "3", "--seed", "5"};
  const auto generate_in = [&](const fs::path& directory, const std::string& model) {
    std::vector<std::string> arguments = {"generate", model};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    const ProgramResult result = zero_in(directory, arguments);
    EXPECT_EQ(result.exit, 0) << result.all();
    return result.output;
  };
  const std::string text = generate_in(path(), "run");
  EXPECT_EQ(generate_in("/", run), text);
  EXPECT_EQ(generate_in("/", run + "/checkpoints/step-00000004"), text);
  const fs::path made = path() / "made";
  const ProgramResult consolidated = zero_in("/", {"consolidate", run, made.string()});
  EXPECT_EQ(consolidated.exit, 0) << consolidated.all();
  EXPECT_TRUE(fs::exists(made / "tokenizer.json"));
  // Its configuration goes on with it, too.
  const ProgramResult resumed =
      zero_in("/", {"train", run + "/config.json", "--resume", "auto", "--set", "run.steps=5"});
  EXPECT_EQ(resumed.exit, 0) << resumed.all();
  EXPECT_EQ(losses().size(), 5);
}

TEST_F(Tool, OutputThatCannotBeWrittenIsAnError) {
  for (const std::string verb :
       {"plan train.json", "--help", "plan --help", "--version", "verify train.tokens"}) {
    const std::string command = std::string(ZERO_TOOL) + " " + verb + " > /dev/full";
    const ProgramResult result = Program({"/bin/sh", "-c", command}, {.directory = path()}).wait();
    EXPECT_EQ(result.exit, 1) << verb << result.all();
    EXPECT_NE(result.error.find("standard output: cannot write all of it: No space left"), std::string::npos)
        << verb << result.all();
  }
}

TEST_F(Tool, CountsStartAtOne) {
  for (const char* verb : {"train", "plan"})
    expect_refused({verb, "train.json", "--ranks", "0"},
                   {"--ranks: expected a whole number from 1 on, got 0;"});
  expect_refused({"launch", "--ranks", "0", "--", "true"}, {"expected a whole number from 1 on, got 0"});
  expect_refused({"eval", "run", "--data", "eval.tokens", "--batches", "-1"}, {"from 1 on, got -1"});
}

TEST_F(Tool, TextsAndTokenizersAreNotReplaced) {
  for (const char* name : {"text.txt", "tokenizer/tokenizer.json"}) {
    const std::string before = read_bytes(path() / name);
    expect_refused({"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", name},
                   {name, "it exists and is not a token file"});
    EXPECT_EQ(read_bytes(path() / name), before);
  }
}

TEST_F(Tool, ResumesToTheSameLosses) {
  good({"train", "train.json", "--ranks", "2", "--run-dir", "whole", "--set", "run.steps=5"});
  good({"train", "train.json", "--ranks", "2", "--set", "run.steps=3", "--resume", "auto"});
  const auto resumed =
      good({"train", "train.json", "--ranks", "2", "--set", "run.steps=5", "--resume", "auto"});
  EXPECT_NE(resumed.output.find("going on from run/checkpoints/step-00000003"), std::string::npos)
      << resumed.all();
  EXPECT_EQ(losses(), losses("whole"));
  // A run stands for its newest checkpoint, as it does elsewhere.
  const auto of_run =
      good({"train", "train.json", "--run-dir", "other", "--set", "run.steps=6", "--resume", "whole"});
  EXPECT_NE(of_run.output.find("going on from whole/checkpoints/step-00000005"), std::string::npos)
      << of_run.all();
  ASSERT_EQ(losses().size(), 5);
  const auto again =
      good({"train", "train.json", "--ranks", "2", "--set", "run.steps=5", "--resume", "auto"});
  EXPECT_NE(again.output.find("all 5 steps were done already"), std::string::npos) << again.all();
}

TEST_F(Tool, AStoppedRunSavesAndGoesOn) {
  for (const int ranks : {1, 2}) {
    const std::string run = "stopped" + std::to_string(ranks);
    const std::vector<std::string> arguments = {
        ZERO_TOOL, "train", "train.json",       "--ranks", std::to_string(ranks),        "--run-dir",
        run,       "--set", "run.steps=100000", "--set",   "checkpoint.interval_steps=0"};
    Program program(arguments, {.directory = path()});
    const fs::path metrics_file = path() / run / "metrics.jsonl";
    ASSERT_TRUE(program.wait_until([&] {
      std::error_code error;
      return fs::exists(metrics_file, error) && fs::file_size(metrics_file, error) > 2000;
    })) << program.result_so_far().all();
    program.signal(SIGTERM);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit, 128 + SIGTERM) << result.all();
    EXPECT_NE(result.output.find("stopped by signal 15 after step "), std::string::npos) << result.all();
    const auto steps = static_cast<int64_t>(losses(run).size());
    good({"train", "train.json", "--ranks", std::to_string(ranks), "--run-dir", run, "--resume", "auto",
          "--set", "run.steps=" + std::to_string(steps + 2)});
    EXPECT_EQ(losses(run).size(), steps + 2);
  }
}

TEST_F(Tool, HelpOfEveryVerb) {
  for (const std::string verb :
       {"tokenize", "train", "eval", "generate", "inspect", "verify", "consolidate"}) {
    EXPECT_NE(good({verb, "--help"}).output.find("zero " + verb), std::string::npos);
    EXPECT_NE(good({"--help"}).output.find("  " + verb), std::string::npos);
  }
  expect_refused({"train", "train.json", "--rank", "2"}, {"--rank"});
}

TEST_F(Tool, BadText) {
  const auto tokenize = [](const std::string& text) {
    return std::vector<std::string>{"tokenize", text, "--tokenizer", "tokenizer", "--out", "train.tokens"};
  };
  const std::string before = read_bytes(path() / "train.tokens");
  write("empty.txt", "");
  write("latin1.txt", "na\xefve\n");
  expect_refused(tokenize("missing.txt"), {"missing.txt"});
  expect_refused(tokenize("empty.txt"), {"empty.txt"});
  expect_refused(tokenize("latin1.txt"), {"latin1.txt", "UTF-8"});
  fs::create_directories(path() / "nothing");
  expect_refused(tokenize("nothing"), {"nothing"});
  expect_refused({"tokenize", "text.txt", "--tokenizer", "missing", "--out", "x.tokens"}, {"missing"});
  expect_refused(
      {"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", "x.tokens", "--held-out", "y.tokens"},
      {"--held-out-fraction"});
  EXPECT_EQ(read_bytes(path() / "train.tokens"), before);
  EXPECT_FALSE(fs::exists(path() / "x.tokens"));
}

TEST_F(Tool, BadTokenFiles) {
  const std::string tokens = read_bytes(path() / "train.tokens");
  for (const std::string ranks : {"1", "2"}) {
    const std::vector<std::string> train = {"train", "train.json", "--ranks", ranks};
    write("train.tokens", std::string_view(tokens).substr(0, tokens.size() - 100));
    expect_refused(train, {"train.tokens", std::to_string(tokens.size())});
    write("train.tokens", "nonsense");
    expect_refused(train, {"train.tokens"});
    fs::remove(path() / "train.tokens");
    expect_refused(train, {"train.tokens"});
    write("train.tokens", tokens);
  }
  // Another tokenizer: the same with one merge less.
  auto json = nlohmann::json::parse(read_bytes(path() / "tokenizer/tokenizer.json"));
  auto& vocabulary = json["model"]["vocab"];
  const std::string last = json["model"]["merges"].back().get<std::string>();
  json["model"]["merges"].erase(json["model"]["merges"].size() - 1);
  std::string joined = last;
  joined.erase(joined.find(' '), 1);
  vocabulary.erase(joined);
  write("other/tokenizer.json", json.dump());
  expect_refused({"train", "train.json", "--set", "data.tokenizer=other"}, {"train.tokens", "vocabulary"});
  expect_refused({"train", "train.json", "--set", "model.vocab_size=500"},
                 {"--set model.vocab_size=500", "expected at least 2000"});
  EXPECT_FALSE(fs::exists(path() / "run"));

  good({"train", "train.json", "--set", "run.steps=2"});
  expect_refused({"eval", "run", "--data", "missing.tokens"}, {"missing.tokens"});
  good({"tokenize", "text.txt", "--tokenizer", "other", "--out", "other.tokens"});
  expect_refused({"eval", "run", "--data", "other.tokens"}, {"other.tokens"});
  expect_refused({"eval", "run", "--data", "other.tokens", "--ranks", "2"}, {"other.tokens"});
  expect_refused({"generate", "run", "--prompt", "x", "--tokenizer", "other"}, {"other", "--tokenizer"});
  expect_refused({"generate", "run", "--prompt", ""}, {"--prompt"});
  expect_refused({"generate", "run", "--prompt", "x", "--temperature", "-1"}, {"temperature"});
}

TEST_F(Tool, BadConfiguration) {
  const auto refused_with = [&](const std::string& from, const std::string& to,
                                const std::vector<std::string>& parts) {
    std::string text = kConfig;
    text.replace(text.find(from), from.size(), to);
    write("bad.json", text);
    for (const std::string ranks : {"1", "2"}) expect_refused({"train", "bad.json", "--ranks", ranks}, parts);
  };
  refused_with("\"stage\"", "\"stag\"", {"bad.json:3", "stag", "did you mean"});
  refused_with("\"stage\": 3", "\"stage\": 7", {"bad.json:3", "0 to 3", "7"});
  refused_with("\"heads\": 2", "\"heads\": 3", {"bad.json:5", "model.heads"});
  refused_with("\"lr\": 3e-3", "\"amsgrad\": true", {"bad.json:4", "amsgrad"});
  refused_with("\"seed\": 1}", "\"seed\": 1}, \"frozen\": [\"head*\"]", {"bad.json:9", "head*"});
  refused_with("\"train_batch_size\": 4", "\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 3",
               {"bad.json:2", "train_batch_size"});
  expect_refused({"train", "missing.json"}, {"missing.json"});
  expect_refused({"train", "train.json", "--set", "run.steps=many"}, {"--set run.steps=many"});
  expect_refused({"train", "train.json", "--ranks", "3"}, {"train.json:2", "3"});
  EXPECT_FALSE(fs::exists(path() / "run"));
}

TEST_F(Tool, RunDirectoriesAreNotMixed) {
  good({"train", "train.json", "--set", "run.steps=2"});
  const std::string metrics = read_bytes(path() / "run/metrics.jsonl");
  expect_refused({"train", "train.json"}, {"run: it holds a run already", "--resume auto"});
  expect_refused({"train", "train.json", "--ranks", "2", "--set", "model.width=32"},
                 {"model.width 16, now 32", "--run-dir"});
  expect_refused({"train", "train.json", "--resume", "auto", "--set", "model.width=32"},
                 {"model.width 16, now 32"});
  EXPECT_EQ(read_bytes(path() / "run/metrics.jsonl"), metrics);
  good({"train", "train.json", "--set", "run.steps=1", "--overwrite"});
  EXPECT_EQ(read_bytes(path() / "run/metrics-1.jsonl"), metrics);
  EXPECT_TRUE(fs::exists(path() / "run/checkpoints-1/step-00000002"));
}

TEST_F(Tool, DamagedCheckpoints) {
  good({"train", "train.json", "--ranks", "2"});
  const fs::path file = path() / "run/checkpoints/step-00000004/rank-00001.safetensors";
  const std::string bytes = read_bytes(file);
  const std::vector<std::string> resume = {"train", "train.json",  "--ranks",  "2",
                                           "--set", "run.steps=6", "--resume", "auto"};
  const auto replace = [&](std::string_view with) { std::ofstream(file, std::ios::binary) << with; };
  replace(std::string_view(bytes).substr(0, bytes.size() / 2));
  expect_refused(resume, {"rank-00001.safetensors"});
  expect_refused({"eval", "run", "--data", "eval.tokens"},
                 {"rank-00001.safetensors", "the checkpoint before it is run/checkpoints/step-00000002"});
  std::string flipped = bytes;
  flipped[bytes.size() * 2 / 3] ^= 0x10;
  replace(flipped);
  // The ranks find it out, all say the same, and it is shown once.
  const ProgramResult result = zero(resume);
  EXPECT_EQ(result.exit, 1) << result.all();
  const size_t said = result.error.find("rank-00001.safetensors: tensor");
  EXPECT_NE(said, std::string::npos) << result.all();
  EXPECT_EQ(result.error.find("rank-00001.safetensors: tensor", said + 1), std::string::npos) << result.all();
  EXPECT_NE(result.error.find("; the checkpoint before it is run/checkpoints/step-00000002\n"),
            std::string::npos)
      << result.all();
  EXPECT_EQ(losses().size(), 4);
  expect_refused({"verify", "run"},
                 {"are damaged", "the checkpoint before it is run/checkpoints/step-00000002"});
  // The one before it is whole, and going back to it loses nothing.
  good({"train", "train.json", "--ranks", "2", "--resume", "run/checkpoints/step-00000002"});
  EXPECT_TRUE(fs::exists(path() / "run/checkpoints/step-00000004-1"));
  good({"eval", "run", "--data", "eval.tokens"});
}

TEST_F(Tool, InspectsAndVerifiesCheckpoints) {
  good({"train", "train.json", "--ranks", "2"});
  const std::string verified = good({"verify", "run"}).output;
  EXPECT_TRUE(verified.starts_with("run/checkpoints/step-00000004: good; ")) << verified;
  EXPECT_NE(verified.find(" in 2 files, "), std::string::npos) << verified;
  good({"verify", "run/checkpoints"});
  good({"verify", "run/checkpoints/step-00000002"});

  const std::string text = good({"inspect", "run"}).output;
  for (const char* part : {"step        4\n", "rank-00001.safetensors", "optimizer/exp_avg_sq", "together",
                           "gpt2, layers 2", "model/h.0.ln_1.weight", "[16]"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in:\n" << text;
  EXPECT_EQ(good({"inspect", "run", "--summary"}).output.find("model/h.0"), std::string::npos);
  const std::string some = good({"inspect", "run", "--tensors", "model/wpe.*"}).output;
  EXPECT_NE(some.find("model/wpe.weight"), std::string::npos) << some;
  EXPECT_EQ(some.find("model/wte.weight"), std::string::npos) << some;
  const auto json = nlohmann::json::parse(good({"inspect", "run", "--json"}).output);
  EXPECT_EQ(json["step"], 4);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["tensors"]["model/wpe.weight"]["shape"], (std::vector<int>{16, 16}));
  EXPECT_EQ(json["totals"]["model"]["bytes"], json["totals"]["optimizer/exp_avg"]["bytes"]);
  EXPECT_EQ(json["metadata"]["user"]["position"], 16);

  expect_refused({"verify", "nothing"}, {"nothing", "no such directory"});
  expect_refused({"inspect", "text.txt"}, {"text.txt", "it is a file, not a run directory or a checkpoint"});
  expect_refused({"verify", "text.txt"}, {"text.txt", "it is no token file"});
  const std::string good_tokens = good({"verify", "train.tokens"}).output;
  EXPECT_TRUE(good_tokens.starts_with("train.tokens: good; ")) << good_tokens;
  std::string tokens = read_bytes(path() / "train.tokens");
  tokens.back() ^= 1;
  write("bad.tokens", tokens);
  expect_refused({"verify", "bad.tokens"}, {"bad.tokens: its tokens have checksum"});
  expect_refused({"inspect", "tokenizer"}, {"tokenizer", "neither a run directory nor a checkpoint"});
  expect_refused({"inspect", "run", "--tensors", "x*"}, {"no tensor's name matches"});
  const fs::path file = path() / "run/checkpoints/step-00000004/rank-00001.safetensors";
  std::string bytes = read_bytes(file);
  bytes.back() ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  const ProgramResult damaged = zero({"verify", "run"});
  EXPECT_EQ(damaged.exit, 1);
  EXPECT_NE(damaged.output.find("damaged: rank-00001.safetensors: tensor \"rank/1/random\""),
            std::string::npos)
      << damaged.all();
  expect_refused({"verify", "run"},
                 {"1 of ", "pieces are damaged", "\"rank/1/random\" in rank-00001.safetensors"});
  fs::resize_file(file, bytes.size() - 1);
  expect_refused({"verify", "run"}, {"rank-00001.safetensors", "lost from tensor \"rank/1/random\" on"});
}

TEST_F(Tool, ConsolidatesARun) {
  good({"train", "train.json", "--ranks", "2"});
  const std::string said = good({"consolidate", "run", "model"}).output;
  EXPECT_TRUE(said.starts_with("model: step 4, ")) << said;
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"})
    EXPECT_TRUE(fs::exists(path() / "model" / file)) << file;
  good({"consolidate", "run/checkpoints/step-00000002", "out/pt", "-f", "pytorch", "--dtype", "bf16",
        "--max-shard-size", "20kB"});
  EXPECT_TRUE(fs::exists(path() / "out/pt/pytorch_model.bin.index.json"));
  expect_refused({"consolidate", "run", "model"}, {"model", "no empty directory"});
  expect_refused({"consolidate", "run", "other", "--format", "gguf"}, {"--format"});
  expect_refused({"consolidate", "run", "other", "--max-shard-size", "many"}, {"--max-shard-size"});
  EXPECT_FALSE(fs::exists(path() / "other"));
}

TEST_F(Tool, ASignalSavesAndTrainingGoesOn) {
  Program program({ZERO_TOOL, "train", "train.json", "--ranks", "2", "--set", "run.steps=100000", "--set",
                   "checkpoint.interval_steps=0", "--set", "checkpoint.save_at_end=false"},
                  {.directory = path()});
  const auto steps = [&] {
    std::error_code error;
    return fs::exists(path() / "run/metrics.jsonl", error) ? losses().size() : 0;
  };
  ASSERT_TRUE(program.wait_until([&] { return steps() > 3; })) << program.result_so_far().all();
  program.signal(SIGUSR1);
  const auto saved = [&] {
    return program.result_so_far().output.find("saved run/checkpoints/step-") != std::string::npos;
  };
  ASSERT_TRUE(program.wait_until(saved)) << program.result_so_far().all();
  const size_t before = steps();
  EXPECT_TRUE(program.wait_until([&] { return steps() > before + 3; })) << "it has stopped";
  good({"verify", "run"});
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().exit, 128 + SIGTERM);
}

// `zero train C | head -1`, and then Ctrl-C: nobody reads what it says, and the run is saved all the same.
TEST_F(Tool, AReaderThatGoesTakesNoRunAlong) {
  for (const std::string ranks : {"1", "2"}) {
    const std::string run = "unread" + ranks;
    const std::string train = "(echo $BASHPID > pid.tmp; mv pid.tmp " + run +
                              ".pid; exec " ZERO_TOOL " train train.json --ranks " + ranks + " --run-dir " +
                              run + " --set run.steps=100000 --set checkpoint.interval_steps=0" +
                              " --set logging.print_interval_steps=1 2>&1) | head -1; exit ${PIPESTATUS[0]}";
    Program program({"bash", "-c", train}, {.directory = path()});
    const auto steps = [&] {
      std::error_code error;
      if (!fs::exists(path() / run / "metrics.jsonl", error)) return std::ptrdiff_t{0};
      const std::string lines = read_bytes(path() / run / "metrics.jsonl");  // the last may be half written
      return std::count(lines.begin(), lines.end(), '\n');
    };
    // Long enough for many a line that nobody reads.
    const bool trains = program.wait_until([&] { return steps() > 30; });
    ASSERT_TRUE(trains) << program.result_so_far().all();
    kill(std::stoi(read_bytes(path() / (run + ".pid"))), SIGINT);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit, 128 + SIGINT) << result.all();
    good({"verify", run});
    good({"train", "train.json", "--ranks", ranks, "--run-dir", run, "--resume", "auto", "--set",
          "run.steps=" + std::to_string(steps() + 1)});
  }
}

TEST_F(Tool, AFullDiskLosesNoCheckpoint) {
  good({"train", "train.json", "--set", "run.steps=2"});
  const std::string before = read_bytes(path() / "run/checkpoints/step-00000002/rank-00000.safetensors");
  ProgramOptions full;
  full.file_bytes = 100000;  // enough for everything but a checkpoint
  ASSERT_GT(before.size(), 100000);
  expect_refused({"train", "train.json", "--resume", "auto"}, {"run/checkpoints", "rank-00000.safetensors"},
                 full);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(path() / "run/checkpoints"))
    left.push_back(entry.path().filename());
  EXPECT_EQ(left, std::vector<std::string>{"step-00000002"});
  EXPECT_EQ(read_bytes(path() / "run/checkpoints/step-00000002/rank-00000.safetensors"), before);
  good({"eval", "run", "--data", "eval.tokens"});
  good({"train", "train.json", "--resume", "auto"});
  EXPECT_EQ(losses().size(), 4);
}

/// A port that somebody listens on.
class TakenPort {
 public:
  TakenPort() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd_, 1) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("no port");
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  std::string port() const { return std::to_string(port_); }

 private:
  int fd_, port_ = 0;
};

ProgramOptions as_rank(const std::string& rank, const std::string& size, const std::string& port) {
  ProgramOptions options;
  options.environment = {{"RANK", rank},
                         {"WORLD_SIZE", size},
                         {"LOCAL_RANK", rank},
                         {"LOCAL_WORLD_SIZE", size},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", port}};
  return options;
}

TEST_F(Tool, APortInUseIsNamed) {
  const TakenPort taken;
  expect_refused({"train", "train.json", "--set", "parallel.timeout_s=5"}, {taken.port()},
                 as_rank("0", "2", taken.port()));
}

TEST_F(Tool, ARankThatNeverComesIsNamed) {
  TakenPort free;
  free.close();
  expect_refused({"train", "train.json", "--set", "parallel.timeout_s=2"}, {"rank 1"},
                 as_rank("0", "2", free.port()));
  EXPECT_FALSE(fs::exists(path() / "run"));
}

TEST_F(Tool, RanksOfALauncherAreCounted) {
  expect_refused({"train", "train.json", "--ranks", "4"}, {"--ranks", "expected 2"},
                 as_rank("0", "2", "1234"));
}

TEST(Printable, IsUtf8) {
  EXPECT_EQ(tool::printable("plain \xc3\xa9"), "plain \xc3\xa9");
  EXPECT_EQ(tool::printable("cut \xf0\x9f\x98"), "cut ");
  EXPECT_EQ(tool::printable("cut \xe2"), "cut ");
  EXPECT_EQ(tool::printable("bad \xff end"), "bad \xef\xbf\xbd end");
  EXPECT_EQ(tool::printable("\x80\xc3"), "\xef\xbf\xbd");
  EXPECT_EQ(tool::printable("over\xc0"), "over\xef\xbf\xbd");          // starts nothing
  EXPECT_EQ(tool::printable("\xe0\x80"), "\xef\xbf\xbd\xef\xbf\xbd");  // overlong: no character begins so
  EXPECT_EQ(tool::printable("\xed\xa0"), "\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
  EXPECT_EQ(tool::printable("\xf4\x8f"), "");
  EXPECT_EQ(tool::printable(""), "");
}

TEST_F(Tool, ConfigIsWrittenCheckedAndDescribed) {
  EXPECT_NE(good({"config", "--init", "new.json"}).output.find("zero config check new.json"),
            std::string::npos);
  const ProgramResult again = zero({"config", "--init", "new.json"});
  EXPECT_EQ(again.exit, 2);
  EXPECT_NE(again.error.find("new.json: something stands there already"), std::string::npos) << again.error;
  const ProgramResult effective =
      good({"config", "check", "new.json", "--ranks", "2", "--set", "run.steps=70"});
  const auto json = nlohmann::json::parse(effective.output);
  EXPECT_EQ(json["run"]["steps"], 70);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 4);
  EXPECT_TRUE(nlohmann::json::parse(good({"config", "--schema"}).output).contains("properties"));
  EXPECT_NE(good({"config", "--keys"}).output.find("\nzero_optimization.stage\n"), std::string::npos);
  write("wrong.json", R"({"run": {"stepz": 1}})");
  const ProgramResult wrong = zero({"config", "check", "wrong.json"});
  EXPECT_EQ(wrong.exit, 2);
  EXPECT_NE(wrong.error.find("did you mean \"steps\"?"), std::string::npos) << wrong.error;
  EXPECT_EQ(zero({"config"}).exit, 2);
  EXPECT_EQ(zero({"config", "--schema", "--keys"}).exit, 2);
}

TEST_F(Tool, DoctorLooksAtTheMachine) {
  const auto levels = [](const nlohmann::json& report) {
    std::map<std::string, std::string> by_name;
    for (const auto& check : report["checks"]) by_name[check["check"]] = check["level"];
    return by_name;
  };
  const auto alone = levels(nlohmann::json::parse(good({"doctor", "--json", "-n", "3"}).output));
  EXPECT_EQ(alone.at("3 ranks here"), "ok");
  for (const char* name : {"zero", "processor", "memory", "open files", "/dev/shm", "ports"})
    EXPECT_TRUE(alone.contains(name)) << name;
  // Its words are for people: one line a check, and what to change below it.
  const std::string text = good({"doctor", "--disk", "/proc"}).output;
  EXPECT_NE(text.find("warning  disk /proc"), std::string::npos) << text;

  // Of a launcher's ranks one for each host looks at it; all meet, and compare clocks.
  const auto together = levels(nlohmann::json::parse(
      good({"launch", "--ranks", "2", "--lead", "--", ZERO_TOOL, "doctor", "--json"}).output));
  EXPECT_EQ(together.at("2 ranks"), "ok");
  EXPECT_EQ(together.at("clocks"), "ok");
  EXPECT_EQ(zero({"launch", "--ranks", "2", "--", ZERO_TOOL, "doctor", "-n", "2"}).exit, 2);
}

TEST(ToolDoctor, PortsAreLookedAtAsRanksUseThem) {
  const tool::PortFinding good = tool::look_at_ports("localhost", -1);
  EXPECT_EQ(good.advice, "");
  EXPECT_EQ(good.found, "localhost is 127.0.0.1, and answers there");
  EXPECT_NE(tool::look_at_ports("no-such-host.invalid", -1).found.find("has no address"), std::string::npos);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const tool::PortFinding taken = tool::look_at_ports("localhost", ntohs(address.sin_port));
  EXPECT_NE(taken.found.find("Address already in use"), std::string::npos) << taken.found;
  EXPECT_NE(taken.advice.find("MASTER_PORT"), std::string::npos);
  ::close(listener);
}

TEST_F(Tool, WordsAreCompletedAndCorrected) {
  EXPECT_NE(zero({"trian"}).error.find("did you mean \"train\"?"), std::string::npos);
  EXPECT_EQ(good({"help", "plan"}).output, good({"plan", "--help"}).output);
  ProgramOptions in_work;
  in_work.directory = path();
  const auto completed = [&](const std::string& words, int index) {
    const std::string script = "eval \"$($0 completion bash)\"; COMP_WORDS=($0 " + words +
                               "); COMP_CWORD=" + std::to_string(index) +
                               "; _zero 2>/dev/null; echo \"${COMPREPLY[*]}\"";
    return Program({"bash", "-c", script, ZERO_TOOL}, in_work).wait().output;
  };
  EXPECT_EQ(completed("tra", 1), "train\n");
  EXPECT_EQ(completed("train --res", 2), "--resume\n");
  EXPECT_NE(completed("train --set zero_opt", 3).find("zero_optimization.stage="), std::string::npos);
  EXPECT_NE(good({"completion", "zsh"}).output.find("compdef _zero zero"), std::string::npos);
  EXPECT_EQ(zero({"completion", "fish"}).exit, 2);
}

TEST_F(Tool, ReportsRuns) {
  good({"train", "train.json"});
  EXPECT_EQ(good({"report", "run"}).output, "run/report.html: 1 run\n");
  const std::string html = read_bytes(path() / "run/report.html");
  EXPECT_NE(html.find("\"eval_loss\""), std::string::npos);
  EXPECT_NE(html.find("checkpoint"), std::string::npos);
  EXPECT_EQ(good({"report", "run", "run", "--out", "both.html"}).output, "both.html: 2 runs\n");
  const ProgramResult other = zero({"report", "run", "--out", "train.json"});
  EXPECT_EQ(other.exit, 2);
  EXPECT_NE(other.error.find("train.json"), std::string::npos) << other.error;
  EXPECT_EQ(zero({"report", "tokenizer"}).exit, 2);
}

}  // namespace
}  // namespace zero
