// Descriptions of devices: what they cost, and what is refused.
#include <gtest/gtest.h>

#include <fstream>

#include "support/expect_error_texts.h"
#include "support/temporary_directory.h"
#include "virtual/description.h"
#include "virtual/virtual_device.h"

namespace zero::virtual_device {
namespace {

using zero::test::expect_error;

constexpr const char* kDevices = ZERO_TEST_DATA "/../configs/devices/";

std::string plain_text() {
  return R"({"name": "n", "source": "s", "memory_bytes": 1000, "flops_per_s": {"f32": 1e12, "bf16": 2e12},
    "memory_bytes_per_s": 1e11, "host_to_device": {"bytes_per_s": 1e9, "latency_ns": 7},
    "device_to_host": {"bytes_per_s": 1e9, "latency_ns": 0}, "device_to_device": {"bytes_per_s": 1e9, "latency_ns": 0},
    "launch_ns": 5, "kernel_ns": 3, "within_host": {"bytes_per_s": 1e9, "latency_ns": 0},
    "between_hosts": {"bytes_per_s": 1e9, "latency_ns": 0}})";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(VirtualDescription, TurnsWorkIntoTime) {
  const DeviceDescription device = description_from_text(plain_text(), "d");
  EXPECT_EQ(device.kernel_time(0, Dtype::f32, 0), 3'000);        // the least
  EXPECT_EQ(device.kernel_time(1e6, Dtype::f32, 0), 1'000'000);  // compute
  EXPECT_EQ(device.kernel_time(1e6, Dtype::bf16, 0), 500'000);
  EXPECT_EQ(device.kernel_time(1e6, Dtype::i64, 0), 1'000'000);     // as f32
  EXPECT_EQ(device.kernel_time(1e6, Dtype::f32, 1e6), 10'000'000);  // memory, the longer of the two
  EXPECT_EQ(device.host_to_device.time_of(1000), 1'007'000);
}

TEST(VirtualDescription, TakesMeasuredTimesWhereThereAreSome) {
  const std::string text = replaced(plain_text(), "\"launch_ns\"", R"("operators": {
    "aten::mm": {"f32": [[1000, 50], [2000, 60], [4000, 120]]}, "*": {"f32": [[100, 10], [200, 10]],
    "bf16": [[100, 40]]}}, "host_computes": true, "network_cards": 4, "launch_ns")");
  const DeviceDescription device = description_from_text(text, "d");
  const auto ns_of = [&](const KernelWork& work) { return static_cast<double>(device.time_of(work)) / 1000; };
  EXPECT_EQ(ns_of({"aten::mm", 10, 1e9}), 50) << "less than was measured";
  EXPECT_EQ(ns_of({"aten::mm", 1500, 0}), 55);
  EXPECT_EQ(ns_of({"aten::mm", 2000, 0}), 60);
  EXPECT_EQ(ns_of({"aten::mm", 3000, 0, Dtype::bf16}), 90) << "as f32";
  EXPECT_EQ(ns_of({"aten::mm", 6000, 0}), 180) << "more than was measured";
  EXPECT_EQ(ns_of({"aten::add", 0, 150}), 10);
  EXPECT_EQ(ns_of({"aten::add", 0, 1e6, Dtype::bf16}), 40) << "one point is all there is";
  EXPECT_EQ(ns_of({"aten::bmm", 1e6, 0}), 1000) << "the data sheet's, as nothing else counts operations";
  EXPECT_TRUE(device.host_computes);
  EXPECT_EQ(device.network_cards, 4);
  const DeviceDescription again = description_from_text(to_text(device), "again");
  EXPECT_EQ(to_text(again), to_text(device));
  EXPECT_EQ(again.curve_of({"aten::mm", 1})->points(), device.curve_of({"aten::mm", 1})->points());
  EXPECT_EQ(to_text(description_from_text(to_text(description_from_text(plain_text(), "d")), "again")),
            to_text(description_from_text(plain_text(), "d")));
}

// The mean of what is within half of a factor of two, and times that do not fall.
TEST(VirtualDescription, CurvesFollowSamples) {
  const std::vector<KernelSample> samples{
      {"aten::mm", 1000, 10, Dtype::f32, 30}, {"aten::mm", 1020, 10, Dtype::f32, 50},
      {"aten::mm", 4000, 10, Dtype::f32, 35}, {"aten::mm", 9000, 10, Dtype::f32, 90},
      {"aten::add", 0, 100, Dtype::bf16, 7},  {"aten::mul", 0, 100, Dtype::bf16, 9}};
  DeviceDescription device = description_from_text(plain_text(), "d");
  device.operators = curves_of(samples);
  const std::vector<TimeCurve::Point> products{{1010, 40}, {4000, 40}, {9000, 90}}, adds{{100, 7}},
      others{{100, 8}};
  EXPECT_EQ(device.curve_of({"aten::mm", 1})->points(), products);
  EXPECT_EQ(device.curve_of({"aten::add", 0, 1, Dtype::bf16})->points(), adds);
  EXPECT_EQ(device.curve_of({"aten::neg", 0, 1, Dtype::bf16})->points(), others);
  EXPECT_EQ(device.curve_of({"aten::neg", 0, 1, Dtype::f32}), nullptr);
  EXPECT_EQ(device.curve_of({"aten::bmm", 1}), nullptr);
}

TEST(VirtualDescription, RefusesWhatIsNone) {
  const auto refuse = [](const std::string& text, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::Corrupt, parts, [&] { description_from_text(text, "d.json"); });
  };
  refuse("{", {"d.json", "not valid JSON"});
  refuse("[]", {"expected an object"});
  refuse(replaced(plain_text(), "\"kernel_ns\": 3,", ""), {"kernel_ns", "got nothing"});
  refuse(replaced(plain_text(), "\"f32\": 1e12,", ""), {"flops_per_s.f32"});
  refuse(replaced(plain_text(), "1e11", "0"), {"memory_bytes_per_s", "above 0"});
  refuse(replaced(plain_text(), "1e11", "-1e400"), {"d.json"});
  refuse(replaced(plain_text(), "1e11", "1e22"), {"memory_bytes_per_s", "1e21"});
  refuse(replaced(plain_text(), "\"launch_ns\": 5", "\"launch_ns\": 1e99"), {"launch_ns"});
  refuse(replaced(plain_text(), "\"launch_ns\": 5", "\"launch_nz\": 5"), {"unknown member", "launch_nz"});
  refuse(replaced(plain_text(), "\"memory_bytes\": 1000", "\"memory_bytes\": 0"), {"capacity above 0"});
  for (const std::string wrong :
       {"[]", "[[1]]", "[[1, 2], [1, 3]]", "[[1, 2], [2, 1]]", "[[1, 1e13]]", "7", "[[\"a\", 1]]"})
    refuse(replaced(plain_text(), "\"launch_ns\"",
                    "\"operators\": {\"aten::mm\": {\"f32\": " + wrong + "}}, \"launch_ns\""),
           {"operators.aten::mm.f32"});
  refuse(replaced(plain_text(), "\"launch_ns\"", R"("operators": {"aten::mm": {}}, "launch_ns")"),
         {"aten::mm"});
  refuse(replaced(plain_text(), "\"launch_ns\"", R"("network_cards": 0, "launch_ns")"), {"network_cards"});
  refuse(replaced(plain_text(), "\"launch_ns\"", R"("host_computes": 1, "launch_ns")"), {"host_computes"});
  testing::TemporaryDirectory directory;
  expect_error(ErrorKind::Io, {"nowhere.json"}, [&] { read_description(directory.path() / "nowhere.json"); });
  std::ofstream(directory.path() / "long.json") << std::string(2 << 20, ' ');
  expect_error(ErrorKind::Io, {"larger than a megabyte"},
               [&] { read_description(directory.path() / "long.json"); });
}

TEST(VirtualDescription, DescriptionsThatComeAlongAreSound) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(kDevices)) {
    const DeviceDescription device = read_description(file.path());
    EXPECT_FALSE(device.name.empty() || device.source.empty()) << file.path();
    EXPECT_GE(device.rate_of(Dtype::bf16), device.rate_of(Dtype::f32)) << file.path();
    EXPECT_GE(device.memory_bytes_per_s, device.host_to_device.bytes_per_s) << file.path();
    EXPECT_GE(device.within_host.bytes_per_s, device.between_hosts.bytes_per_s) << file.path();
    ++count;
  }
  EXPECT_EQ(count, 4);
}

TEST(VirtualDevices, RefusesOptionsOutOfBounds) {
  VirtualDeviceOptions options;
  expect_error(ErrorKind::Config, {"capacity_bytes"}, [&] { VirtualDevices devices(options); });
  options.description = description_from_text(plain_text(), "d");
  options.devices = 9;
  expect_error(ErrorKind::Config, {"devices", "9"}, [&] { VirtualDevices devices(options); });
  options.devices = 1;
  VirtualDevices devices(options);
  expect_error(ErrorKind::Usage, {"there are virtual devices already"},
               [&] { VirtualDevices second(options); });
  expect_error(ErrorKind::Usage, {"no virtual device 1"}, [&] { devices.device(1); });
}

}  // namespace
}  // namespace zero::virtual_device
