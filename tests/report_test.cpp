// Pages about runs: what is read of a run directory, and what stands on the page.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/page.h"
#include "report/run_record.h"
#include "support/temporary_directory.h"
#include "zero/error.h"

namespace zero::report {
namespace {

namespace fs = std::filesystem;

class Report : public ::testing::Test {
 protected:
  fs::path run(const std::string& metrics) {
    const fs::path path = folder_.path() / "a <run>";
    fs::create_directories(path / "checkpoints/step-00000002");
    fs::create_directories(path / "checkpoints/step-x");
    folder_.write("a <run>/config.json", R"({"run": {"directory": "</script><b>"}})");
    folder_.write("a <run>/metrics.jsonl", metrics);
    return path;
  }
  std::string said(const std::string& metrics) {
    try {
      read_run(run(metrics));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(Report, ReadsStepsEvaluationsAndEvents) {
  const RunRecord record = read_run(run(R"({"step":1,"loss":3.5,"skipped":false,"device_bytes":{"states":7}}
{"step":1,"eval_loss":3.25}
{"step":2,"loss":null,"skipped":true}
{"step":3,"lo)"));
  EXPECT_EQ(record.series.at("loss").step, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(record.series.at("loss").value[0], 3.5);
  EXPECT_TRUE(std::isnan(record.series.at("loss").value[1]));
  EXPECT_EQ(record.series.at("eval_loss").value, (std::vector<double>{3.25}));
  EXPECT_EQ(record.series.at("device_bytes.states").value, (std::vector<double>{7}));
  ASSERT_EQ(record.events.size(), 2u);
  EXPECT_EQ(record.events[0].step, 2);
  EXPECT_EQ(record.events[0].text + "; " + record.events[1].text,
            "skipped: the gradient was not finite; checkpoint");
}

TEST_F(Report, SaysWhenTheRunWentOn) {
  folder_.write("a <run>/resumes.jsonl",
                "{\"step\":1,\"checkpoint\":\"/x/checkpoints/step-00000001\"}\n{\"step\":5,\"chec");
  const RunRecord record = read_run(run("{\"step\":1,\"loss\":3}\n"));
  ASSERT_EQ(record.events.size(), 2u);
  EXPECT_EQ(record.events[0].step, 1);
  EXPECT_EQ(record.events[0].text, "resumed from step-00000001");
}

TEST_F(Report, NamesWhatIsWrong) {
  EXPECT_NE(said("{\"step\":1}\n{\"step\":\n").find("metrics.jsonl:2"), std::string::npos);
  EXPECT_NE(said("{\"loss\":1}\n").find("step"), std::string::npos);
  fs::create_directories(folder_.path() / "empty");
  try {
    read_run(folder_.path() / "empty");
    ADD_FAILURE() << "an empty directory is no run";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Config);
    EXPECT_NE(std::string(error.what()).find("holds no run"), std::string::npos) << error.what();
  }
}

TEST_F(Report, ThinsToMeansOfNeighbours) {
  Series series;
  for (int i = 1; i <= 1000; ++i) {
    series.step.push_back(i);
    series.value.push_back(i % 10 == 0 ? std::nan("") : 1);
  }
  const Series few = thinned(series, 100);
  ASSERT_EQ(few.step.size(), 100u);
  EXPECT_EQ(few.step.back(), 1000);
  for (const double value : few.value) EXPECT_EQ(value, 1);
  EXPECT_EQ(thinned(series, 1000).value.size(), 1000u);
}

// The page's data parse, nothing of them ends the script, and nothing is loaded from elsewhere.
TEST_F(Report, ThePageStandsByItself) {
  const RunRecord record = read_run(run("{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":2.5}\n"));
  const std::string html = page({{record, "plan </script>"}, {record, ""}});
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(html.find("@data@"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "<link", "@import"}) {
    const size_t place = html.find(outside);
    EXPECT_TRUE(place == std::string::npos || html.compare(place, 18, "http://www.w3.org/") == 0) << outside;
  }
  const std::string open = "id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  const auto data = nlohmann::json::parse(html.substr(begin, html.find("</script>", begin) - begin));
  ASSERT_EQ(data["runs"].size(), 2u);
  EXPECT_EQ(data["runs"][0]["name"], "a <run>");
  EXPECT_EQ(data["runs"][0]["plan"], "plan </script>");
  EXPECT_EQ(data["runs"][0]["series"]["loss"]["value"], (std::vector<double>{3.5, 2.5}));
  ASSERT_EQ(data["charts"].size(), 1u);
  EXPECT_EQ(data["charts"][0]["lines"][0]["field"], "loss");
  EXPECT_THROW(page({}), Error);
}

}  // namespace
}  // namespace zero::report
