// What `zero plan` says: the ZeRO paper's table, exact integers, numbers as people write them, and whole
// configurations.
#include "zero/plan_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/model_spec.h"

namespace zero {
namespace {

using nlohmann::json;

CountPlan count_plan(int64_t parameters, int ranks, std::optional<int64_t> memory = {}) {
  return plan_from_count({.parameters = parameters, .ranks = ranks, .memory_bytes = memory});
}

// A figure as the paper prints it: right to half a unit of its last digit.
void expect_printed(const std::string& printed, int64_t bytes) {
  size_t dot = printed.find('.');
  double unit = dot == printed.npos ? 1 : std::pow(10, -static_cast<double>(printed.size() - dot - 1));
  EXPECT_NEAR(std::stod(printed), static_cast<double>(bytes) / 1e9, unit / 2 * 1.0001) << printed;
}

// Rajbhandari et al., arXiv 1910.02054, table 1: GB a device for stages 1, 2, 3.
TEST(PlanReport, AgreesWithThePapersTable) {
  constexpr int64_t k7_5B = 7'500'000'000, k128B = 128'000'000'000, k1T = 1'000'000'000'000;
  struct Row {
    int ranks;
    int64_t parameters;
    std::array<const char*, 3> printed;
  };
  const Row rows[] = {
      {1, k7_5B, {"120", "120", "120"}},      {1, k128B, {"2048", "2048", "2048"}},
      {1, k1T, {"16000", "16000", "16000"}},  {4, k7_5B, {"52.5", "41.3", "30"}},
      {4, k128B, {"896", "704", "512"}},      {4, k1T, {"7000", "5500", "4000"}},
      {16, k7_5B, {"35.6", "21.6", "7.5"}},   {16, k128B, {"608", "368", "128"}},
      {16, k1T, {"4750", "2875", "1000"}},    {64, k7_5B, {"31.4", "16.6", "1.88"}},
      {64, k128B, {"536", "284", "32"}},      {64, k1T, {"4188", "2219", "250"}},
      {256, k7_5B, {"30.4", "15.4", "0.47"}}, {256, k128B, {"518", "263", "8"}},
      {256, k1T, {"4047", "2055", "62.5"}},   {1024, k7_5B, {"30.1", "15.1", "0.12"}},
      {1024, k128B, {"513", "258", "2"}},     {1024, k1T, {"4012", "2014", "15.6"}},
  };
  for (const Row& row : rows) {
    CountPlan plan = count_plan(row.parameters, row.ranks);
    SCOPED_TRACE(std::to_string(row.parameters) + " on " + std::to_string(row.ranks));
    EXPECT_EQ(plan.stages[0].state_bytes(), 16 * row.parameters);
    for (size_t stage = 1; stage <= 3; ++stage)
      expect_printed(row.printed[stage - 1], plan.stages[stage].state_bytes());
  }
}

TEST(PlanReport, TrafficIsTheModelTwiceOrThreeTimes) {
  CountPlan plan = count_plan(7'500'000'000, 64);
  for (size_t stage = 0; stage <= 2; ++stage) EXPECT_EQ(plan.stages[stage].traffic_elements, 15'000'000'000);
  EXPECT_EQ(plan.stages[3].traffic_elements, 22'500'000'000);
  EXPECT_EQ(count_plan(7'500'000'000, 1).stages[3].traffic_elements, 0);
  CountPlan accumulated = plan_from_count({.parameters = 10, .ranks = 2, .accumulation_steps = 4});
  EXPECT_EQ(accumulated.stages[0].traffic_elements, 20);
  EXPECT_EQ(accumulated.stages[1].traffic_elements, 20);
  EXPECT_EQ(accumulated.stages[2].traffic_elements, 50);
  EXPECT_EQ(accumulated.stages[3].traffic_elements, 120);
}

TEST(PlanReport, TheEngineAccumulatesInFullPrecision) {
  CountOptions options{.parameters = 1000, .ranks = 10, .accumulation_steps = 2};
  CountPlan plan = plan_from_count(options);
  EXPECT_EQ(plan.stages[0].engine_state_bytes(), 16 * 1000);
  EXPECT_EQ(plan.stages[1].engine_state_bytes(), 6 * 1000 + 10 * 100);
  EXPECT_EQ(plan.stages[2].engine_state_bytes(), 2 * 1000 + 14 * 100);
  EXPECT_EQ(plan.stages[3].engine_state_bytes(), 16 * 100);
  options.accumulation_steps = 1;
  EXPECT_EQ(plan_from_count(options).stages[1].engine_state_bytes(), 2 * 1000 + 14 * 100)
      << "reduced as produced";
  options.engine_gradient_bytes = 2;
  options.engine_optimizer_bytes = 12;
  EXPECT_EQ(plan_from_count(options).stages[2].engine_state_bytes(),
            plan_from_count(options).stages[2].state_bytes());
}

// The same numbers through make_plan for a model of one unit that needs no padding.
TEST(PlanReport, CountAndPlanAgree) {
  constexpr int64_t kParameters = 32 * 60;
  ModuleSpec root{.name = "", .parameters = {{.name = "w", .shape = {kParameters}}}, .children = {}};
  for (int ranks : {1, 2, 3, 4, 5})
    for (int accumulation : {1, 3}) {
      CountPlan count =
          plan_from_count({.parameters = kParameters, .ranks = ranks, .accumulation_steps = accumulation});
      for (int stage = 0; stage <= 3; ++stage) {
        const EngineOptions options{
            .stage = stage, .dtype = Dtype::bf16, .accumulation_steps = accumulation, .budget_bytes = 0};
        RankPlan rank = make_plan(root, options, {.ranks = ranks}).rank;
        const CountStage& row = count.stages[static_cast<size_t>(stage)];
        EXPECT_EQ(row.engine_state_bytes(), rank.state_bytes())
            << stage << " " << ranks << " " << accumulation;
        EXPECT_EQ(row.traffic_elements, rank.traffic_elements())
            << stage << " " << ranks << " " << accumulation;
      }
    }
}

TEST(PlanReport, TheLargestModelThatFits) {
  CountPlan plan = count_plan(1, 64, 32'000'000'000);
  const double printed[] = {2.0e9, 7.6e9, 14.4e9, 128e9};
  for (size_t stage = 0; stage <= 3; ++stage) {
    int64_t largest = *plan.stages[stage].largest_parameters;
    EXPECT_NEAR(static_cast<double>(largest), printed[stage], 0.05e9);
    EXPECT_LE(count_plan(largest, 64).stages[stage].state_bytes(), 32'000'000'000);
    EXPECT_GT(count_plan(largest + 1, 64).stages[stage].state_bytes(), 32'000'000'000);
    // What fp32 gradients cost more, the master's missing half saves, where both are cut alike.
    const int64_t ours = *plan.stages[stage].engine_largest_parameters;
    if (stage == 1)
      EXPECT_GT(ours, largest) << "whole gradients in the paper only";
    else
      EXPECT_EQ(ours, largest);
  }
  EXPECT_EQ(*count_plan(1, 1, 10).stages[0].largest_parameters, 0);
}

TEST(PlanReport, JsonIsExactBeyondDoubles) {
  constexpr int64_t kParameters = (int64_t{1} << 55) + 1;
  json plan = json::parse(to_json(count_plan(kParameters, 2)));
  EXPECT_EQ(plan["parameters"].get<int64_t>(), kParameters);
  EXPECT_EQ(plan["ranks"], 2);
  ASSERT_EQ(plan["stages"].size(), 4u);
  EXPECT_EQ(plan["stages"][0]["stage"], 0);
  EXPECT_TRUE(plan["stages"][0]["state_bytes_per_rank"].is_number_integer());
  EXPECT_EQ(plan["stages"][0]["state_bytes_per_rank"].get<int64_t>(), 16 * kParameters);
  EXPECT_EQ(plan["stages"][0]["engine_state_bytes_per_rank"].get<int64_t>(), 16 * kParameters);
  EXPECT_EQ(plan["stages"][3]["traffic_elements_per_step"].get<int64_t>(), 3 * kParameters);
  EXPECT_FALSE(plan["stages"][0].contains("largest_parameters"));
  plan = json::parse(to_json(count_plan(1000, 2, 999)));
  EXPECT_EQ(plan["memory_bytes"], 999);
  EXPECT_EQ(plan["stages"][0]["largest_parameters"], 62);
}

TEST(PlanReport, CountsAsPeopleWriteThem) {
  const std::pair<const char*, int64_t> good[] = {{"1", 1},
                                                  {"7500000000", 7'500'000'000},
                                                  {"7.5e9", 7'500'000'000},
                                                  {"7.5E+9", 7'500'000'000},
                                                  {"1T", 1'000'000'000'000},
                                                  {"124M", 124'000'000},
                                                  {"1.5B", 1'500'000'000},
                                                  {"1.5b", 1'500'000'000},
                                                  {"12k", 12'000},
                                                  {"2G", 2'000'000'000},
                                                  {"1500e-2", 15},
                                                  {"0.5e1", 5},
                                                  {"1.500000000000000000000", 0},
                                                  {".5M", 500'000},
                                                  {"5.", 5},
                                                  {"72057594037927936", int64_t{1} << 56},
                                                  {"1e-3T", 1'000'000'000},
                                                  {"123456789.123456789e9", 123'456'789'123'456'789}};
  for (auto [text, value] : good)
    if (value > 0 && value <= int64_t{1} << 56) {
      EXPECT_EQ(parse_count(text, "x"), value) << text;
    }
  for (const char* bad : {"",       " ",
                          "abc",    "-1",
                          "+1",     "1,5",
                          "1..5",   "e9",
                          ".",      "nan",
                          "NaN",    "inf",
                          "-inf",   "0x10",
                          "1e",     "1e+",
                          "1e9999", "7.5",
                          "1.5",    "0",
                          "0e9",    "1.0000001M",
                          "1e17",   "1e400",
                          "1Q",     "1TB",
                          "1 2",    "99999999999999999999",
                          "1e-300", "123456789.123456789e9",
                          "1M1"})
    EXPECT_ERROR(parse_count(bad, "--parameters"), Config, "--parameters: expected");
  EXPECT_ERROR(parse_count("abc", "--parameters"), Config, "7.5e9, 124M, 1.5B or 1T, got \"abc\"");
}

TEST(PlanReport, SizesAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("32GB", "x"), 32'000'000'000);
  EXPECT_EQ(parse_bytes("32 GB", "x"), 32'000'000'000);
  EXPECT_EQ(parse_bytes("80GiB", "x"), int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("1.5gib", "x"), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("0.1KiB", "x"), 102);
  EXPECT_EQ(parse_bytes("500e6", "x"), 500'000'000);
  EXPECT_EQ(parse_bytes("1TB", "x"), 1'000'000'000'000);
  for (const char* bad : {"", "GB", "-1GB", "0", "0.1B", "1e30TB", "32GBs", "32 G B", "nan"})
    EXPECT_ERROR(parse_bytes(bad, "--memory"), Config, "--memory: expected");
}

TEST(PlanReport, FiguresForPeople) {
  const std::pair<int64_t, const char*> cases[] = {{0, "0 B"},
                                                   {999, "999 B"},
                                                   {1000, "1.00 kB"},
                                                   {31'406'250'000, "31.4 GB"},
                                                   {999'499, "999 kB"},
                                                   {999'500, "1.00 MB"},
                                                   {99'949'999, "99.9 MB"},
                                                   {99'950'000, "100 MB"},
                                                   {9'994'999, "9.99 MB"},
                                                   {9'995'000, "10.0 MB"},
                                                   {1'875'000'000, "1.88 GB"},
                                                   {std::numeric_limits<int64_t>::max(), "9.22 EB"}};
  for (auto [value, text] : cases) EXPECT_EQ(human_bytes(value), text);
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(7'500'000'000), "7.50G");
}

TEST(PlanReport, BadCountsAreNamed) {
  EXPECT_ERROR(plan_from_count({.parameters = 0}), Config, "parameters");
  EXPECT_ERROR(plan_from_count({.parameters = (int64_t{1} << 56) + 1}), Config, "parameters");
  EXPECT_ERROR(plan_from_count({.parameters = 1, .ranks = 0}), Config, "ranks");
  EXPECT_ERROR(plan_from_count({.parameters = 1, .accumulation_steps = 0}), Config, "accumulation");
  EXPECT_ERROR(plan_from_count({.parameters = int64_t{1} << 55, .ranks = 2, .accumulation_steps = 1 << 30}),
               Config, "traffic");
}

void expect_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(PlanReport, TheTableOfACount) {
  std::string text = to_text(count_plan(7'500'000'000, 64, 32'000'000'000));
  expect_columns(text);
  for (const char* part : {"7,500,000,000 parameters on 64 ranks", "31.4 GB", "16.6 GB", "1.88 GB", "120 GB",
                           "22.5G", "128G", "14.4G", "10 bytes beside a bf16 parameter"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in\n" << text;
}

ConfigPlan planned(const Config& config, int ranks, std::optional<int64_t> memory_bytes = {}, int hosts = 1) {
  return plan_from_config(config, trained_spec(config), ranks, memory_bytes, hosts);
}
PlanAnswer answered(const PlanRequest& request) { return answer(request, trained_spec, tensor_part); }

Config resolved_config(const std::string& text, int ranks) { return resolve(parse_config(text), ranks); }

TEST(PlanReport, DeepSpeedsBuffersAct) {
  // Ranks with memory of their own, so that slabs are gathered.
  const auto plan_of = [](const std::string& keys, const std::string& more = "") {
    const std::string text = R"({"model": {"size": "gpt2"}, "train_batch_size": 2, "data": {"train": "x"},
      "parallel": {"backend": "gloo"}, )" +
                             more + R"("zero_optimization": {"stage": 3, )" + keys + "}}";
    return planned(resolved_config(text, 2), 2).stages[3];
  };
  const std::string small = R"("reduce_bucket_size": 1e6)", usual = R"("reduce_bucket_size": 2e6)";
  EXPECT_EQ(plan_of(small).rank.bucket_bytes * 2, plan_of(usual).rank.bucket_bytes);
  EXPECT_EQ(plan_of(R"("stage3_max_live_parameters": 5e7)").rank.gather_window_bytes, 4 * 50'000'000);
  EXPECT_EQ(plan_of(R"("stage3_prefetch_bucket_size": 1e6)").prefetch_bytes, 4 * 1'000'000);
  const std::string one_slab = R"("stage3_max_live_parameters": 0)";
  const Plan none = plan_of(one_slab),
             some = plan_of(one_slab + R"(, "stage3_param_persistence_threshold": 10000)"),
             few = plan_of(one_slab + R"(, "stage3_param_persistence_threshold": 10000,
                                         "stage3_model_persistence_threshold": 20000)");
  int64_t persistent = 0;
  for (const UnitLayout& unit : some.units) persistent += unit.persistent ? unit.numel : 0;
  // Biases and norms of 12 blocks, and the last norm.
  EXPECT_EQ(persistent, 12 * (768 * (3 + 1 + 4 + 1) + 4 * 768) + 2 * 768);
  EXPECT_LT(some.rank.all_gather_elements, none.rank.all_gather_elements);
  int64_t allowed = 0;
  for (const UnitLayout& unit : few.units) allowed += unit.persistent ? unit.numel : 0;
  EXPECT_GT(allowed, 0);
  EXPECT_LE(allowed, 20000);
  const std::string disk = R"("offload": {"optimizer": "disk", "path": "/d"}, )";
  const Plan pieces = plan_of(R"("sub_group_size": 1e5)", disk);
  EXPECT_EQ(pieces.offload.piece_numel, 100'096) << "whole blocks of 256";
  EXPECT_LT(pieces.rank.ring_bytes, plan_of(R"("sub_group_size": 1e9)", disk).rank.ring_bytes);
  EXPECT_ERROR(plan_of(R"("reduce_scatter": false)"), Unsupported, "reduce_scatter");
}

TEST(PlanReport, ChoosesWhatLeavesMemory) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.path() / "gpt2.json";
  std::ofstream(path) << R"({"model": {"size": "gpt2"}, "bf16": {"enabled": true}, "train_batch_size": 2,
                             "data": {"train": "x"}, "zero_optimization": {"stage": 2}})";
  PlanRequest request{.config = path, .ranks = 2, .memory = "1.0GB", .disk = "/disk", .json = true};
  request.machine = [](const OffloadConfig& offload, int host_ranks) {
    EXPECT_EQ(offload.how.path, "/disk");
    EXPECT_EQ(host_ranks, 2);
    return TierMachine{.rates = {.disk_read = 5e8, .disk_write = 2.5e8}};
  };
  const json plan = json::parse(answered(request).text);
  const json& placement = plan["placement"];
  const json& stage = plan["stages"][2];
  EXPECT_LE(placement["peak_bytes_per_rank"], 1'000'000'000);
  EXPECT_EQ(placement["peak_bytes_per_rank"], stage["total_bytes_per_rank"]);
  EXPECT_EQ(stage["fits"], true);
  EXPECT_EQ(placement["state_bytes_per_rank_by_tier"], stage["state_bytes_per_rank_by_tier"]);
  const double read = placement["disk_bytes_read_per_step"],
               written = placement["disk_bytes_written_per_step"];
  EXPECT_GT(read, 0);
  EXPECT_NEAR(placement["seconds_per_step"].get<double>(), read / 5e8 + written / 2.5e8, 1e-6);
  EXPECT_EQ(placement["disk_bytes_written_in_1000_steps_all_ranks"], 2000 * written);
  EXPECT_EQ(placement["units"].size(), plan["units"].size());

  request.json = false;
  const std::string text = answered(request).text;
  for (const char* words : {"Where states are", "On disk: ", "All ranks write "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
  request.memory = "";
  EXPECT_ERROR(answered(request), Config, "--disk: ");
  request.memory = "1MB";
  EXPECT_ERROR(answered(request), Config, "a rank's memory is 1.00 MB, but wherever states are, ");
}

TEST(PlanReport, SaysWhatIsOnDiskAndWhatThatWears) {
  const auto plan_of = [](const std::string& offload) {
    return planned(
        resolved_config(R"({"model": {"size": "gpt2"}, "bf16": {"enabled": true}, "train_batch_size": 4,
                                       "data": {"train": "x"}, "zero_optimization": {"stage": 3}, "offload": )" +
                            offload + "}",
                        2),
        2);
  };
  const ConfigPlan memory = plan_of("{}"), disk = plan_of(R"({"optimizer": "disk", "path": "/d"})");
  EXPECT_EQ(to_text(memory).find("on disk"), std::string::npos);
  const std::string text = to_text(disk);
  for (const char* line :
       {"of it on disk", "buffers for the disk", "written a step", "Written in 1000 steps, all"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
  const json three = json::parse(to_json(disk))["stages"][3],
             before = json::parse(to_json(memory))["stages"][3];
  // A shard of half of 124 million elements, with 2 + 8 bytes each.
  EXPECT_NEAR(three["disk_bytes_written_per_step"].get<double>(), 124e6 / 2 * 10, 124e6 / 2 * 10 * 0.01);
  const auto on_disk = three["state_bytes_per_rank_by_tier"]["disk"].get<int64_t>();
  EXPECT_GE(three["disk_bytes_written_per_step"].get<int64_t>(), on_disk) << "in blocks of 4 KiB";
  EXPECT_EQ(
      three["total_bytes_per_rank"].get<int64_t>(),
      before["total_bytes_per_rank"].get<int64_t>() - on_disk + three["ring_bytes_per_rank"].get<int64_t>());
  const std::string host = to_text(plan_of(R"({"optimizer": "host"})"));
  EXPECT_NE(host.find("of it in host memory"), std::string::npos);
  EXPECT_NE(host.find("frees nothing"), std::string::npos);
}
constexpr const char* kGpt2 =
    R"({"train_batch_size": 16, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2}, "model": {"size": "gpt2"},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})";

TEST(PlanReport, AConfigurationAtEveryStage) {
  ConfigPlan plan = planned(resolved_config(kGpt2, 4), 4, 2'000'000'000, /*hosts=*/4);
  EXPECT_EQ(plan.parameters, 124'439'808);
  EXPECT_EQ(plan.chosen_stage, 2);
  EXPECT_EQ(plan.stages[2].rank.parameter_bytes - 2 * plan.parameters,
            2 * (plan.stages[2].rank.padding_elements / 3));  // 2 reductions and 1 gather
  double parameters = static_cast<double>(plan.parameters);
  EXPECT_NEAR(static_cast<double>(plan.stages[2].rank.state_bytes()), parameters * (2 + 14. / 4),
              parameters * 0.001);
  EXPECT_NEAR(static_cast<double>(plan.stages[3].rank.state_bytes()), parameters * 16 / 4,
              parameters * 0.001);
  EXPECT_NEAR(static_cast<double>(plan.stages[1].rank.state_bytes()), parameters * (2 + 4 + 10. / 4),
              parameters * 0.001);

  json report = json::parse(to_json(plan));
  ASSERT_EQ(report["stages"].size(), 4u);
  for (int stage = 0; stage <= 3; ++stage) {
    const json& row = report["stages"][static_cast<size_t>(stage)];
    const RankPlan& rank = plan.stages[static_cast<size_t>(stage)].rank;
    EXPECT_EQ(row["stage"], stage);
    EXPECT_EQ(row["chosen"], stage == 2);
    EXPECT_EQ(row["state_bytes_per_rank"], rank.state_bytes());
    EXPECT_EQ(row["state_bytes_per_rank_by_tier"]["device"], rank.state_bytes());
    EXPECT_EQ(row["parameter_bytes_per_rank"].get<int64_t>() + row["gradient_bytes_per_rank"].get<int64_t>() +
                  row["optimizer_bytes_per_rank"].get<int64_t>(),
              rank.state_bytes());
    EXPECT_EQ(row["traffic_elements_per_step"], rank.traffic_elements());
    EXPECT_EQ(row["fits"], plan.total_bytes(static_cast<size_t>(stage)) <= 2'000'000'000);
    EXPECT_EQ(row["activation_bytes_per_rank"], plan.activations.kept);
    EXPECT_EQ(row["loss_bytes_per_rank"], plan.activations.loss);
  }
  int64_t numel = 0;
  for (const json& unit : report["units"]) numel += unit["numel"].get<int64_t>();
  EXPECT_EQ(numel, plan.parameters);
}

// The device is the one that a run would take.
TEST(PlanReport, AHostsDevicesDecideAsInARun) {
  const auto plan_on = [](const std::string& backend, int cuda_devices) {
    std::string text = kGpt2;
    text.insert(1, "\"parallel\": {\"backend\": \"" + backend + "\"}, ");
    const Config config = resolved_config(text, 4);
    return plan_from_config(config, trained_spec(config), 4, {}, /*hosts=*/1, cuda_devices);
  };
  struct Case {
    const char* backend;
    int cuda_devices;
    bool on_cuda, shares;
  };
  for (const Case& c :
       {Case{"auto", 0, false, true}, Case{"auto", 2, true, false}, Case{"shm", 2, false, true},
        Case{"gloo", 2, false, false}, Case{"nccl", 0, true, false}, Case{"nccl", 2, true, false}}) {
    SCOPED_TRACE(c.backend + std::string(" ") + std::to_string(c.cuda_devices));
    const ConfigPlan plan = plan_on(c.backend, c.cuda_devices);
    EXPECT_EQ(plan.on_cuda, c.on_cuda);
    EXPECT_EQ(plan.stages[2].cpu_operators, !c.on_cuda);
    EXPECT_EQ(plan.stages[3].placements.parameter == Placement::Common, c.shares);
    EXPECT_EQ(json::parse(to_json(plan))["device"], c.on_cuda ? "cuda" : "cpu");
    expect_columns(to_text(plan));
    EXPECT_NE(to_text(plan).find(c.on_cuda ? "on CUDA devices\n" : "on CPU\n"), std::string::npos);
  }
}

// NCCL's own sums where the run would have them; on CPU each host's first.
TEST(PlanReport, FastSumsAreSaid) {
  const auto plan_on = [](const std::string& communication, int cuda_devices) {
    std::string text = kGpt2;
    text.insert(1, "\"parallel\": {\"communication\": \"" + communication + "\"}, ");
    const Config config = resolved_config(text, 4);
    return plan_from_config(config, trained_spec(config), 4, {}, /*hosts=*/1, cuda_devices);
  };
  const ConfigPlan fast = plan_on("fast", 4), exact = plan_on("exact", 4);
  EXPECT_NE(to_text(fast).find("Gradients are summed by NCCL"), std::string::npos);
  EXPECT_EQ(to_text(exact).find("summed by NCCL"), std::string::npos);
  EXPECT_EQ(json::parse(to_json(fast))["communication"], "fast");
  EXPECT_EQ(json::parse(to_json(exact))["communication"], "exact");
  EXPECT_NE(to_text(plan_on("fast", 0)).find("summed host by host"), std::string::npos);
}

// fp32 values and two moments, each rank's part of them once; nothing where no save is in the background.
TEST(PlanReport, TheCopyThatIsSavedCounts) {
  const auto plan_with = [](const std::string& checkpoint) {
    std::string text = kGpt2;
    text.insert(1, "\"checkpoint\": " + checkpoint + ", ");
    return planned(resolved_config(text, 4), 4, 2'000'000'000);
  };
  const ConfigPlan saving = plan_with(R"({"interval_steps": 20})");
  for (size_t stage = 0; stage <= 3; ++stage) {
    EXPECT_NEAR(static_cast<double>(saving.save_copy_bytes[stage]), 12. / 4 * 124'439'808, 1e5) << stage;
    EXPECT_EQ(saving.total_bytes(stage),
              peak_bytes(saving.stages[stage], saving.activations) + saving.save_copy_bytes[stage]);
  }
  const json row = json::parse(to_json(saving))["stages"][2];
  EXPECT_EQ(row["save_copy_bytes_per_rank"], saving.save_copy_bytes[2]);
  EXPECT_EQ(row["total_bytes_per_rank"], saving.total_bytes(2));
  EXPECT_NE(to_text(saving).find("copy while saving"), std::string::npos);
  for (const char* off : {R"({"interval_steps": 20, "async": false})", R"({"save_at_end": true})"}) {
    const ConfigPlan plan = plan_with(off);
    EXPECT_EQ(plan.save_copy_bytes, (std::array<int64_t, 4>{})) << off;
    EXPECT_EQ(to_text(plan).find("copy while saving"), std::string::npos) << off;
  }
}

TEST(PlanReport, TheTableOfAConfiguration) {
  std::string text = to_text(planned(resolved_config(kGpt2, 4), 4, 2'000'000'000, /*hosts=*/4));
  expect_columns(text);
  for (const char* part :
       {"[stage 2]", "124,439,808 parameters", "4 ranks on 4 hosts, 2 micro-batches a step, on CPU",
        "bf16 parameters, AdamW", "h.0 .. h.11", "12 x", "wte", "ln_f", "gather window", "Fits 2.00 GB"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in\n" << text;
}

TEST(PlanReport, RanksOfAHostShareOneCopyOfTheParameters) {
  auto plan = [](const std::string& more, int hosts) {
    std::string text = kGpt2;
    text.insert(1, more);
    return planned(resolved_config(text, 4), 4, {}, hosts);
  };
  const ConfigPlan apart = plan("", 4), together = plan("", 1);
  for (size_t stage = 1; stage <= 3; ++stage) {
    const RankPlan &alone = apart.stages[stage].rank, &shared = together.stages[stage].rank;
    const int64_t slabs = apart.stages[1].rank.parameter_bytes;
    EXPECT_EQ(shared.parameter_bytes, slabs / 4) << stage;
    EXPECT_EQ(shared.parameter_bytes + shared.common_bytes, slabs) << stage;
    EXPECT_EQ(shared.gather_window_bytes, 0) << stage;
    EXPECT_EQ(shared.resident_bytes(), shared.total_bytes() + shared.common_bytes) << stage;
    EXPECT_EQ(shared.optimizer_bytes, alone.optimizer_bytes) << stage;
    EXPECT_LT(shared.bucket_bytes, alone.bucket_bytes) << stage;
    EXPECT_EQ(alone.resident_bytes(), alone.total_bytes()) << stage;
    EXPECT_EQ(shared.largest_gradient_bytes, int64_t{50257} * 768 * 2) << stage;
  }
  EXPECT_EQ(together.stages[0].rank.total_bytes(), together.stages[1].rank.total_bytes())
      << "no replicas on a host";
  EXPECT_GT(apart.stages[0].rank.optimizer_bytes, 3 * together.stages[0].rank.optimizer_bytes);

  const json report = json::parse(to_json(together));
  EXPECT_EQ(report["hosts"], 1);
  EXPECT_EQ(report["stages"][3]["total_bytes_per_host"], 4 * together.total_bytes(3));
  EXPECT_EQ(report["stages"][3]["resident_bytes_per_rank"],
            together.total_bytes(3) + together.stages[3].rank.common_bytes);
  const std::string text = to_text(together);
  expect_columns(text);
  for (const char* part : {"resident", "Bytes a host", "share one copy"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in\n" << text;
  EXPECT_EQ(to_text(apart).find("share one copy"), std::string::npos);
  EXPECT_NE(to_text(apart).find("4 ranks on 4 hosts"), std::string::npos);

  for (const char* off : {R"("residency": {"share": false},)", R"("parallel": {"backend": "gloo"},)"})
    EXPECT_EQ(plan(off, 1).stages[3].rank.common_bytes, 0) << off;
  const char* pairs = R"("parallel": {"shard_group": 2},)";
  EXPECT_GT(plan(pairs, 2).stages[3].rank.common_bytes, 0) << "a shard group on each host";
  EXPECT_EQ(plan(pairs, 4).stages[3].rank.common_bytes, 0) << "shard groups across hosts";
  EXPECT_EQ(plan("", 2).stages[3].rank.common_bytes, 0) << "one shard group across hosts";
  EXPECT_ERROR(plan("", 3), Config, "--hosts: expected a divisor of the 4 ranks, got 3");
  EXPECT_ERROR(plan("", 0), Config, "--hosts");
}

TEST(PlanReport, AConfigurationsOwnChoicesCount) {
  auto stage = [](const std::string& more, size_t stage, int ranks = 4) {
    std::string text = kGpt2;
    text.insert(1, more);
    return planned(resolved_config(text, ranks), ranks, {}, /*hosts=*/ranks).stages[stage];
  };
  EXPECT_EQ(stage(R"("residency": {"budget": 123456789},)", 3).rank.gather_window_bytes, 123456789);
  EXPECT_EQ(stage(R"("parallel": {"shard_group": 2},)", 3).replica_ranks, 2);
  Plan frozen = stage(R"("frozen": ["wte.*", "h.0.*"],)", 2);
  EXPECT_LT(frozen.rank.optimizer_bytes, stage("", 2).rank.optimizer_bytes);
  EXPECT_FALSE(frozen.units[0].trainable);
  EXPECT_LT(stage(R"("data_types": {"grad_accum_dtype": "bf16"},)", 2).rank.gradient_bytes,
            stage("", 2).rank.gradient_bytes);
  EXPECT_EQ(stage("", 3, 1).rank.traffic_elements(), 0);
  Config unresolved = parse_config(kGpt2);
  EXPECT_ERROR(planned(unresolved, 4), Usage, "resolve");
}

TEST(PlanReport, WhatIsDividedBeforeItTravelsDoesSoInFp32) {
  const auto wire = [](const std::string& more) {
    std::string text = kGpt2;
    text.insert(1, more);
    return planned(resolved_config(text, 4), 4).stages[2].communication_dtype;
  };
  EXPECT_EQ(wire(""), Dtype::bf16);
  EXPECT_EQ(wire(R"("gradient_predivide_factor": 2,)"), Dtype::f32);
  EXPECT_EQ(wire(R"("prescale_gradients": true,)"), Dtype::f32);
  EXPECT_EQ(wire(R"("prescale_gradients": true, "communication_data_type": "bf16",)"), Dtype::bf16);
}

TEST(PlanReport, ReplicasThatShareMemoryReduceInSmallBucketsToo) {
  const auto stage = [](int hosts) {
    std::string text = kGpt2;
    text.insert(1, R"("parallel": {"shard_group": 1},)");
    return planned(resolved_config(text, 4), 4, {}, hosts).stages[3];
  };
  EXPECT_EQ(stage(4).reduce_bucket_numel, 16 << 20);
  EXPECT_EQ(stage(1).reduce_bucket_numel, 2 << 20);
  EXPECT_LT(stage(1).rank.bucket_bytes, stage(4).rank.bucket_bytes);
}

TEST(PlanReport, AnswersACountOrAConfiguration) {
  testing::TemporaryDirectory directory;
  std::string path = (directory.path() / "config.json").string();
  std::ofstream(path) << kGpt2;
  json count =
      json::parse(answered({.parameters = "1T", .ranks = 1024, .memory = "80GB", .json = true}).text);
  EXPECT_EQ(count["stages"][3]["state_bytes_per_rank"], 15'625'000'000);
  json config = json::parse(answered({.config = path, .ranks = 4, .json = true}).text);
  EXPECT_EQ(config["ranks"], 4);
  EXPECT_EQ(json::parse(answered({.config = path, .json = true}).text)["ranks"], 1);
  std::vector<std::string> overrides{"parallel.ranks=8", "zero_optimization.stage=3"};
  config = json::parse(answered({.config = path, .overrides = overrides, .json = true}).text);
  EXPECT_EQ(config["ranks"], 8);
  EXPECT_EQ(config["chosen_stage"], 3);
  EXPECT_NE(answered({.parameters = "124M"}).text.find("124,000,000 parameters on 1 rank,"),
            std::string::npos);
}

TEST(PlanReport, QuestionsWithoutAnAnswer) {
  EXPECT_ERROR(answered({}), Config, "got neither");
  EXPECT_ERROR(answered({.config = "a", .parameters = "1"}), Config, "got both");
  EXPECT_ERROR(answered({.config = "/nowhere/config.json"}), Io, "/nowhere/config.json");
  EXPECT_ERROR(answered({.config = "a", .accumulation_steps = 2}), Config, "--accumulation");
  EXPECT_ERROR(answered({.parameters = "-5"}), Config, "--parameters: expected a count");
  EXPECT_ERROR(answered({.parameters = "5", .ranks = -1}), Config, "--ranks");
  EXPECT_ERROR(answered({.parameters = "5", .memory = "lots"}), Config, "--memory: expected a size");
  EXPECT_ERROR(answered({.overrides = {"a=b"}, .parameters = "5"}), Config, "--set");
}

}  // namespace
}  // namespace zero
