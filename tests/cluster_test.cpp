// Described clusters, and steps on them: published throughputs of Megatron and ZeRO-3, and waiting by formula
// beside played schedules.
#include "plan/cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "pipeline/timeline.h"
#include "plan/cluster_plan.h"
#include "plan/step_time.h"
#include "support/expect_error.h"

namespace zero {
namespace {

constexpr const char* kClusters = ZERO_TEST_DATA "/../configs/clusters/";
constexpr double kSequence = 2048, kVocabulary = 51200;

/// A row of Narayanan et al., arXiv 2104.04473, table 1; micro-batches and chunks are those of the scripts
/// that they published with it.
struct MegatronRow {
  double width;
  int layers, heads, tensor, pipeline, gpus, batch, micro_batch, chunks;
  double teraflops;
};
const MegatronRow kMegatron[] = {
    {2304, 24, 24, 1, 1, 32, 512, 16, 1, 137},       {3072, 30, 32, 2, 1, 64, 512, 16, 1, 138},
    {4096, 36, 32, 4, 1, 128, 512, 16, 1, 142},      {6144, 40, 48, 8, 1, 256, 1024, 8, 1, 135},
    {8192, 48, 64, 8, 2, 512, 1536, 4, 1, 138},      {10240, 60, 80, 8, 4, 1024, 1792, 2, 3, 140},
    {12288, 80, 96, 8, 8, 1536, 2304, 2, 2, 148},    {16384, 96, 128, 8, 16, 1920, 2160, 1, 2, 155},
    {20480, 105, 128, 8, 35, 2520, 2520, 1, 3, 163}, {25600, 128, 160, 8, 64, 3072, 3072, 1, 1, 163}};

// Section 3.1 of the same, of a whole batch.
double published_flops(double batch, int layers, double width) {
  return 96 * batch * kSequence * layers * width * width *
         (1 + kSequence / (6 * width) + kVocabulary / (16 * layers * width));
}

// Of layers that are recomputed. What they leave is Korthikanti et al.'s, arXiv 2205.05198, table 2.
StepWork published_work(const MegatronRow& row) {
  const double tokens = row.micro_batch * kSequence, h = row.width, t = row.tensor;
  const double layers = static_cast<double>(row.layers) / row.pipeline;
  StepWork work;
  work.product_flops = tokens * (layers * 24 * h * h + 2 * kVocabulary * h) / t;
  work.score_flops = tokens * layers * 4 * kSequence * h / t;
  work.kept_bytes = tokens * layers * (10 * h + (24 * h + 5 * row.heads * kSequence) / t);
  if (row.tensor > 1) work.tensor.all_reduce.add(std::llround(4 * layers), std::llround(2 * tokens * h), 2);
  work.message_bytes = tokens * h * 2 / t;  // scattered over the host's cards, and gathered
  const double parameters = (12 * layers * h * h + kVocabulary * h) / t;
  work.data = {.bytes = 2 * parameters * 4, .calls = 2};
  work.optimizer_bytes = 30 * parameters;
  work.all_flops = published_flops(row.batch, row.layers, h) * 3 / 4;
  work.again_flops = work.all_flops / 3;
  return work;
}

double teraflops_of(const Cluster& cluster, const MegatronRow& row) {
  const int dp = row.gpus / row.tensor / row.pipeline;
  const StepLayout layout{.dp = dp,
                          .tp = row.tensor,
                          .pp = row.pipeline,
                          .schedule = row.chunks > 1 ? pipeline::Kind::Interleaved : pipeline::Kind::OneFOneB,
                          .chunks = row.chunks,
                          .micro_batches = row.batch / dp / row.micro_batch,
                          .recompute = true,
                          .overlap = false};
  return time_of_step(cluster, layout, published_work(row), /*exact_schedule=*/true).flops / 1e12;
}

TEST(Cluster, PredictsMegatronsTable) {
  const Cluster selene = read_cluster(std::string(kClusters) + "a100-selene.json");
  for (const MegatronRow& row : kMegatron) {
    const double found = teraflops_of(selene, row);
    RecordProperty("gpus_" + std::to_string(row.gpus), std::to_string(found));
    EXPECT_NEAR(found / row.teraflops, 1, 0.1) << row.gpus << " GPUs: " << found;
  }
}

// Table 2 of the same: a model of 174.6 billion parameters, batch 1536. That system reached less of the
// devices, and of their cards what a ring over one of the eight would.
TEST(Cluster, PredictsZero3sThreeRows) {
  Cluster selene = read_cluster(std::string(kClusters) + "a100-selene.json");
  selene.compute_efficiency = 0.5;
  selene.network_efficiency = 0.08;
  constexpr double kWidth = 12288, kParameters = 174.6e9;
  constexpr int kLayers = 96, kHeads = 96, kBatch = 1536;
  for (const auto& [gpus, published] : {std::pair{384, 144.0}, {768, 88.0}, {1536, 44.0}}) {
    const int rows = kBatch / gpus;
    StepWork work = published_work({kWidth, kLayers, kHeads, 1, 1, gpus, kBatch, rows, 1, published});
    work.data = {.bytes = 3 * kParameters * 2, .calls = 3 * kLayers};
    work.optimizer_bytes = 30 * kParameters / gpus;
    const StepLayout layout{.dp = gpus, .recompute = true};
    const double found = time_of_step(selene, layout, work, true).flops / 1e12;
    EXPECT_NEAR(found / published, 1, 0.1) << gpus << " GPUs: " << found;
  }
}

TEST(Cluster, RingsCrossTheNetworkWithTheirPartOfTheCards) {
  const Cluster selene = read_cluster(std::string(kClusters) + "a100-selene.json");
  EXPECT_EQ(selene.devices(), 3072);
  // Inside a host; eight ranks of each host; one rank of each.
  EXPECT_DOUBLE_EQ(link_of(selene, group_of(selene, 8, 1)).bytes_per_s, 300e9);
  EXPECT_DOUBLE_EQ(link_of(selene, group_of(selene, 32, 1)).bytes_per_s, 200e9);
  EXPECT_DOUBLE_EQ(link_of(selene, group_of(selene, 32, 8)).bytes_per_s, 25e9);
  EXPECT_DOUBLE_EQ(link_of(selene, group_of(selene, 4, 4)).bytes_per_s, 50e9);
  EXPECT_DOUBLE_EQ(ring_seconds(selene, {4, 4}, 4e9, 1), 3 * (2e-6 + 1e9 / 300e9));
  EXPECT_EQ(ring_seconds(selene, {1, 1}, 4e9, 1), 0);
}

// Ranks wait what the formulas say, where messages take no time and ranks divide the micro-batches.
TEST(StepTime, WaitsByFormulaAsSchedulesDo) {
  using pipeline::Kind;
  const pipeline::StageCosts costs{.forward = 3, .backward_input = 4, .backward_weight = 2};
  for (const int pp : {2, 4, 8})
    for (const Kind kind : {Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1}) {
      const int chunks = kind == Kind::Interleaved ? 2 : 1;
      const StepLayout layout{.pp = pp, .schedule = kind, .chunks = chunks, .micro_batches = 3 * pp};
      const pipeline::Timeline played =
          pipeline::time_of(pipeline::make_schedule(kind, pp, 3 * pp, chunks, {costs}), costs);
      const double waited = kind == Kind::ZbH1 ? played.cost - played.ideal : played.duration - played.ideal;
      EXPECT_NEAR(bubble_by_formula(layout, costs), waited, 1e-9) << to_string(kind) << " " << pp;
    }
}

// Worked by hand: rates of 1 and powers of ten.
TEST(StepTime, AddsUp) {
  const Cluster cluster{.name = "c",
                        .source = "",
                        .hosts = 2,
                        .devices_per_host = 2,
                        .memory_bytes = 1,
                        .flops_per_s = {{Dtype::f32, 100}},
                        .memory_bytes_per_s = 10,
                        .within_host = {1000, 0},
                        .between_hosts = {100, 0},
                        .network_cards = 1,
                        .compute_efficiency = 0.5};
  StepWork work{.dtype = Dtype::bf16, .product_flops = 100, .score_flops = 50, .kept_bytes = 10};
  work.data = {.bytes = 1000, .calls = 10};
  work.optimizer_bytes = 20;
  work.all_flops = 4 * 450 * 2;
  work.tokens = 80;
  StepLayout layout{.dp = 4, .micro_batches = 2, .overlap = false};
  StepTime time = time_of_step(cluster, layout, work, true);
  // A forward takes 2 + 1 + 2 s; its backward 2 + 2 + 4, and 2 for weights.
  EXPECT_DOUBLE_EQ(time.compute_s, 2 * 15);
  EXPECT_DOUBLE_EQ(time.optimizer_s, 2);
  EXPECT_DOUBLE_EQ(time.data_s, 3 * 250 / 100.0);  // over the one card of a host
  EXPECT_DOUBLE_EQ(time.step_s(), 30 + 2 + 7.5);
  EXPECT_DOUBLE_EQ(time.tokens_per_s, 80 / 39.5);
  layout.overlap = true;
  time = time_of_step(cluster, layout, work, true);
  EXPECT_DOUBLE_EQ(time.data_s, 0.75);  // the last call
  EXPECT_DOUBLE_EQ(time.data_all_s, 7.5);
  layout.recompute = true;
  EXPECT_DOUBLE_EQ(time_of_step(cluster, layout, work, true).compute_s, 2 * 20);
}

// Two stages of 12 s a micro-batch each, of four: 48 s of work, and 12 s of waiting where cores are their
// own.
TEST(StepTime, RanksThatWaitLeaveSharedCoresToOthers) {
  Cluster cluster{.name = "c",
                  .source = "",
                  .devices_per_host = 4,
                  .memory_bytes = 1,
                  .flops_per_s = {{Dtype::f32, 100}},
                  .memory_bytes_per_s = 1e9,
                  .within_host = {1e9, 0},
                  .between_hosts = {1e9, 0}};
  StepWork work{.dtype = Dtype::f32, .product_flops = 400};
  StepLayout layout{.dp = 2, .pp = 2, .micro_batches = 4, .overlap = false};
  StepTime time = time_of_step(cluster, layout, work, true);
  EXPECT_DOUBLE_EQ(time.compute_s, 48);
  EXPECT_DOUBLE_EQ(time.bubble_s, 12);
  cluster.cores_per_host = 4;
  EXPECT_DOUBLE_EQ(time_of_step(cluster, layout, work, true).step_s(), 60);
  // Two ranks a core: 30 s with a core each are less than what the cores have to do.
  cluster.cores_per_host = 2;
  time = time_of_step(cluster, layout, work, true);
  EXPECT_DOUBLE_EQ(time.compute_s, 48);
  EXPECT_DOUBLE_EQ(time.bubble_s, 0);
  // With one micro-batch there is one rank of a pipeline at work at a time, and two of four in all.
  layout.micro_batches = 1;
  time = time_of_step(cluster, layout, work, true);
  EXPECT_DOUBLE_EQ(time.step_s(), 12);
  cluster.cores_per_host = 3;
  EXPECT_DOUBLE_EQ(time_of_step(cluster, layout, work, true).step_s(), 24 / (4 / 3.0));
  // Fewer ranks have more of a core each.
  EXPECT_DOUBLE_EQ(part_of(cluster, 2).rate_of(Dtype::f32), 100 * 4 / 3.0);
}

TEST(ClusterDescription, RefusesWhatCannotBe) {
  const auto text = [](const std::string& change, const std::string& by) {
    std::string good =
        R"({"name": "n", "source": "s", "hosts": 2, "devices_per_host": 4, "memory_bytes": 100,
            "flops_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e11,
            "within_host": {"bytes_per_s": 1e10, "latency_ns": 1},
            "between_hosts": {"bytes_per_s": 1e9, "latency_ns": 1}, "efficiency": {"compute": 0.5}})";
    if (const size_t at = good.find(change); at != std::string::npos) good.replace(at, change.size(), by);
    return good;
  };
  const Cluster good = cluster_from_text(text("", ""), "c.json");
  EXPECT_EQ(good.devices(), 8);
  EXPECT_EQ(good.compute_efficiency, 0.5);
  EXPECT_EQ(good.network_efficiency, 1);
  EXPECT_EQ(good.rate_of(Dtype::bf16), 1e12);
  const auto refuse = [&](const std::string& change, const std::string& by, const char* expected) {
    EXPECT_ERROR(cluster_from_text(text(change, by), "c.json"), Corrupt, expected);
  };
  refuse("\"hosts\": 2", "\"hosts\": 0", "c.json: hosts: expected a whole number from 1 on");
  refuse("\"hosts\": 2", "\"host\": 2", "unknown member \"host\"");
  refuse("1e12", "0", "c.json: flops_per_s.f32: expected a number above 0");
  refuse("\"f32\"", "\"bf16\"", "flops_per_s.f32: expected a number above 0");
  refuse("0.5", "1.5", "efficiency.compute: expected a number above 0 and at most 1");
  refuse("\"memory_bytes\": 100", "\"memory_bytes\": 0", "memory_bytes: expected a capacity above 0");
  refuse("\"devices_per_host\": 4", "\"devices_per_host\": 1000000", "devices_per_host: expected");
  refuse("\"latency_ns\": 1", "\"latency_ns\": -1", "within_host.latency_ns: expected");
  refuse("\"hosts\": 2", "\"hosts\": 2, \"cores_per_host\": 0",
         "c.json: cores_per_host: expected a whole number from 1 on");
  refuse("}", "", "c.json");
  for (const char* name : {"a100-selene", "h100-128-hosts", "cpu-2-cores"})
    EXPECT_NO_THROW(read_cluster(std::string(kClusters) + name + ".json")) << name;
}

}  // namespace
}  // namespace zero
