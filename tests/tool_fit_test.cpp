// `zero fit`: one command from a text to a model that generates, and what it says of texts that will not do.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/temporary_directory.h"
#include "support/tool_program.h"
#include "tool/fit_pace.h"
#include "zero/token_file.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using testing::ProgramResult;
using testing::read_bytes;

class Fit : public ::testing::Test {
 protected:
  ProgramResult zero(std::vector<std::string> arguments) const {
    return testing::zero_in(folder_.path(), std::move(arguments));
  }
  ProgramResult fit(const std::string& out) const {
    return zero({"fit", "text.txt", "--steps", "6", "-n", "2", "--model", "tiny", "--out", out});
  }
  nlohmann::json score(const std::string& out) const {
    return nlohmann::json::parse(read_bytes(folder_.path() / out / "fit.json"));
  }
  /// One line on standard error, and nothing is left behind.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& part) const {
    const ProgramResult result = zero(arguments);
    EXPECT_NE(result.exit, 0);
    EXPECT_NE(result.error.find(part), std::string::npos) << part << " in: " << result.all();
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    EXPECT_FALSE(fs::exists(folder_.path() / "new"));
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(Fit, MakesAModelThatGenerates) {
  folder_.write("text.txt", testing::some_text(300));
  const ProgramResult made = fit("a");
  ASSERT_EQ(made.exit, 0) << made.all();
  for (const char* part :
       {"bits per byte: ", "gzip -9: ", "xz -9e: ", "sample after step 1,", "sample after step 6,"})
    EXPECT_NE(made.output.find(part), std::string::npos) << part << " in: " << made.output;
  for (const char* once : {"model.norm.weight ", "zero report a ", "zero consolidate a DIR "}) {
    const size_t first_at = made.output.find(once);
    EXPECT_NE(first_at, std::string::npos) << once << " in: " << made.output;
    EXPECT_EQ(made.output.find(once, first_at + 1), std::string::npos) << once << " in: " << made.output;
  }
  const ProgramResult text = zero({"generate", "a", "--prompt", "The clocks", "--tokens", "5"});
  EXPECT_EQ(text.exit, 0) << text.all();
  EXPECT_TRUE(text.output.starts_with("The clocks")) << text.output;

  // Six steps know the letters, not the text: between a uniform guess and what gzip makes of it.
  const auto first = score("a");
  EXPECT_LT(first["bits_per_byte"].get<double>(), 8);
  EXPECT_GT(first["bits_per_byte"].get<double>(), first["gzip_bits_per_byte"].get<double>());
  // The held-out bytes are the end of the text, and no part of what was trained on.
  const std::string held_out = read_bytes(folder_.path() / "a/data/held_out.txt");
  EXPECT_EQ(first["bytes"].get<size_t>(), held_out.size());
  EXPECT_NE(testing::some_text(300).substr(testing::some_text(300).size() * 9 / 10 - 100).find(held_out),
            std::string::npos);
  const Tokenizer tokenizer = Tokenizer::load(folder_.path() / "a/data/tokenizer");
  const TokenFile train = TokenFile::open(folder_.path() / "a/data/train.tokens");
  std::vector<int32_t> ids(train.size() - 1);
  train.read(0, ids);
  EXPECT_TRUE(testing::some_text(300).starts_with(tokenizer.decode(ids)));

  ASSERT_EQ(fit("b").exit, 0);
  EXPECT_EQ(score("b"), first);  // to the bit
  const ProgramResult again = fit("a");
  EXPECT_NE(again.exit, 0);
  EXPECT_NE(again.error.find("a: it is there already; give another --out"), std::string::npos) << again.error;
}

TEST_F(Fit, FineTunesAModelDirectoryWithItsTokenizer) {
  folder_.write("text.txt", testing::some_text(300));
  ASSERT_EQ(fit("a").exit, 0);
  ASSERT_EQ(zero({"consolidate", "a", "model"}).exit, 0);
  const ProgramResult tuned =
      zero({"fit", "text.txt", "--steps", "6", "-n", "2", "--model", "model", "--out", "tuned"});
  ASSERT_EQ(tuned.exit, 0) << tuned.all();
  EXPECT_LT(score("tuned")["bits_per_byte"], score("a")["bits_per_byte"]);  // it begins where the other ended
  EXPECT_EQ(score("tuned")["tokens"], score("a")["tokens"]);
  EXPECT_EQ(zero({"generate", "tuned", "--prompt", "Line", "--tokens", "3"}).exit, 0);
}

// The ranks stand still for longer than all of the time asked.
TEST_F(Fit, EndsInTimeWhereStepsTakeLongerThanMeasured) {
  folder_.write("text.txt", testing::some_text(300));
  const std::string tool = ZERO_TOOL;
  folder_.write("slow.sh", tool + R"( fit text.txt --minutes 0.2 -n 2 --model tiny --out a >said 2>&1 &
fit=$!
until grep -q '^step 1/' said; do sleep 0.05; kill -0 $fit || exit 2; done
ranks=$(ps -o pid= --ppid $fit)
kill -STOP $ranks; sleep 14; kill -CONT $ranks
wait $fit
)");
  testing::ProgramOptions options;
  options.directory = folder_.path();
  const ProgramResult result = testing::Program({"/bin/bash", "slow.sh"}, options).wait();
  const std::string said = read_bytes(folder_.path() / "said");
  ASSERT_EQ(result.exit, 0) << result.all() << said;
  EXPECT_NE(said.find("it takes longer than measured: "), std::string::npos) << said;
  const auto config = nlohmann::json::parse(read_bytes(folder_.path() / "a/config.json"));
  const auto steps = std::to_string(config["run"]["steps"].get<int64_t>());
  EXPECT_EQ(config["scheduler"]["params"]["total_steps"], config["run"]["steps"]);
  EXPECT_NE(said.find("step " + steps + "/" + steps + " "), std::string::npos) << said;
  EXPECT_NE(said.find("sample after step " + steps + ","), std::string::npos) << said;
  EXPECT_GT(score("a")["bits_per_byte"].get<double>(), 0);
  const auto planned = nlohmann::json::parse(read_bytes(folder_.path() / "a/config-1.json"));
  EXPECT_LT(config["run"]["steps"], planned["run"]["steps"]);
}

TEST_F(Fit, RefusesWhatIsNoTextOrTooLittle) {
  folder_.write("empty.txt", "");
  folder_.write("short.txt", "too short");
  folder_.write("binary.bin", testing::some_text(300) + std::string(1, '\0'));
  folder_.write("latin1.txt", testing::some_text(300) + "caf\xe9 ...");
  folder_.write("good.txt", testing::some_text(300));
  const auto on = [](const std::string& text) {
    return std::vector<std::string>{"fit", text, "--steps", "1", "--out", "new"};
  };
  expect_refused(on("missing.txt"), "missing.txt");
  expect_refused(on("empty.txt"), "empty.txt: the text is empty");
  expect_refused(on("short.txt"), "short.txt: expected at least 2000 bytes of text in all, got 9");
  expect_refused(on("binary.bin"), "binary.bin: it is no text");
  expect_refused(on("latin1.txt"), "latin1.txt");
  expect_refused({"fit", "good.txt", "--model", "huge", "--out", "new"},
                 "--model: expected tiny, small, gpt2");
  expect_refused({"fit", "good.txt", "--minutes", "0", "--out", "new"}, "--minutes: expected a time above 0");
  expect_refused({"fit"}, "texts is required");
}

TEST(FitPace, ShortensWhatTakesTooLong) {
  EXPECT_EQ(tool::steps_in_time(100, 25, 1.0, 75), 100);
  EXPECT_EQ(tool::steps_in_time(100, 25, 1.0, 70), 100);  // a tenth over is near enough
  EXPECT_EQ(tool::steps_in_time(100, 25, 0.5, 75), 100);  // never longer than planned
  EXPECT_EQ(tool::steps_in_time(100, 25, 2.0, 75), 62);   // 37 more
  EXPECT_EQ(tool::steps_in_time(100, 64, 2.0, -20), 69);  // the learning rate's way down
  EXPECT_EQ(tool::steps_in_time(100, 99, 2.0, -20), 100);
  EXPECT_EQ(tool::steps_in_time(100, 1, 1000, 1), 2);
}

TEST_F(Fit, RefusesAModelThatNeedsMoreMemory) {
  folder_.write("text.txt", testing::some_text(300));
  const ProgramResult result =
      zero({"fit", "text.txt", "--steps", "1", "--model", "gpt2", "--memory", "100MiB", "--out", "new"});
  EXPECT_NE(result.exit, 0);
  EXPECT_NE(result.error.find("--memory: a rank needs"), std::string::npos) << result.all();
  EXPECT_FALSE(fs::exists(folder_.path() / "new"));
}

}  // namespace
}  // namespace zero
