// zero doctor: whether this machine, or the hosts of a launcher's ranks, will do for training.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/processor.h"
#include "launch/process.h"
#include "median.h"
#include "mesh/agree.h"
#include "mesh/host_identity.h"
#include "ports.h"
#include "ranks.h"
#include "tiers/disk_file.h"
#include "tiers/disk_rate.h"
#include "train/process_memory.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/launch.h"
#include "zero/mesh.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr rlim_t kFewFiles = 4096;          // a shard, a token file and sockets for each rank, and room
constexpr double kSlowDisk = 200e6;         // bytes a second, below which states on it take most of a step
constexpr double kClockDifference_s = 1.0;  // beyond which times of logs and traces of hosts do not fit

struct DoctorArguments {
  std::string disk = ".";
  int ranks = 0;
  bool json = false;
};

/// One finding. `advice`: what to change; "" where nothing is wrong.
struct Check {
  enum class Level { Ok, Warning, Failed };
  std::string name, value;
  Level level = Level::Ok;
  std::string advice = {};
};

std::string_view to_string(Check::Level level) {
  constexpr std::string_view kNames[] = {"ok", "warning", "failed"};
  return kNames[static_cast<size_t>(level)];
}

Check warning_if(bool is_wrong, std::string name, std::string value, std::string advice) {
  return {std::move(name), std::move(value), is_wrong ? Check::Level::Warning : Check::Level::Ok,
          is_wrong ? std::move(advice) : ""};
}

std::string rate_text(double bytes_a_second) {
  return human_bytes(static_cast<int64_t>(bytes_a_second)) + "/s";
}

Check version_check() { return {"zero", std::string(ZERO_VERSION) + ", LibTorch " + TORCH_VERSION}; }

Check processor_check() {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const int ours = detail::available_cores();
  std::string value = std::to_string(ours) + (ours == 1 ? " core" : " cores");
  if (ours != online) value += " of the machine's " + std::to_string(online);
  value += runs_avx512() ? ", AVX-512" : runs_avx2() ? ", AVX2" : "";
  value += runs_amx() ? ", bf16 in tiles (AMX)" : multiplies_bf16() ? ", bf16" : "";
  return warning_if(!runs_avx2(), "processor", value,
                    "without AVX2 the optimizers' and operators' kernels take their slow form");
}

Check memory_check() {
  const int64_t free = training::free_memory_bytes();
  return warning_if(free < kGibibyte, "memory", human_bytes(free) + " free",
                    "LibTorch alone takes 0.2 GB a rank; end other programs or raise the container's limit");
}

Check files_check() {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
  return warning_if(!is_unlimited && limit.rlim_cur < kFewFiles, "open files",
                    is_unlimited ? "unlimited" : std::to_string(limit.rlim_cur) + " a process",
                    "many ranks on a host need more: ulimit -n " + std::to_string(kFewFiles));
}

// Ranks on CPU share memory without a file; NCCL's ranks of a host do so here.
Check shared_memory_check() {
  struct statvfs system {};
  if (::statvfs("/dev/shm", &system) != 0)
    return {"/dev/shm", "is not there", Check::Level::Warning, "NCCL needs it: mount a tmpfs there"};
  const auto bytes = static_cast<int64_t>(system.f_blocks * system.f_frsize);
  return warning_if(
      bytes < kGibibyte, "/dev/shm", human_bytes(bytes),
      "ranks on CUDA need more: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm");
}

std::vector<Check> disk_checks(const std::string& directory) {
  try {
    const int64_t free = tiers::free_disk_bytes(directory, "--disk");
    constexpr int64_t kMeasuredBytes = int64_t{128} << 20;
    if (free < 2 * kMeasuredBytes)
      return {{"disk " + directory, human_bytes(free) + " free", Check::Level::Warning, "make room there"}};
    const tiers::DiskRate rate =
        tiers::measure_disk({.directory = directory, .key = "--disk"}, kMeasuredBytes);
    const std::string transport =
        tiers::DiskFile({.directory = directory, .bytes = 1 << 20, .key = "--disk"}).description();
    return {warning_if(std::min(rate.read, rate.write) < kSlowDisk, "disk " + directory,
                       human_bytes(free) + " free, reads " + rate_text(rate.read) + ", writes " +
                           rate_text(rate.write),
                       "states on this disk would take most of a step; name a faster one with --disk"),
            warning_if(!transport.starts_with("io_uring"), "transfers", transport,
                       "allow io_uring (kernel.io_uring_disabled, the container's seccomp profile) for "
                       "states on a disk")};
  } catch (const Error& error) {
    return {{"disk " + directory, "holds no states", Check::Level::Warning, error.what()}};
  }
}

Check ports_check() {
  const PortFinding found = look_at_ports();
  return warning_if(!found.advice.empty(), "ports", found.found, found.advice);
}

std::vector<Check> machine_checks(const std::string& disk) {
  std::vector<Check> checks{version_check(), processor_check(),     memory_check(),
                            files_check(),   shared_memory_check(), ports_check()};
  for (Check& check : disk_checks(disk)) checks.push_back(std::move(check));
  return checks;
}

/// Bytes a second that an all-gather brings to each rank, the median of some. Collective.
double gather_rate(const Mesh& mesh) {
  constexpr int64_t kNumel = int64_t{4} << 20;  // 16 MiB of each rank
  constexpr int kTimes = 7;
  const at::Tensor in = at::ones({kNumel}, at::kFloat);
  const at::Tensor out = at::zeros({kNumel * mesh.size()}, at::kFloat);
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    mesh.world().barrier("doctor");
    const auto begin = Clock::now();
    mesh.world().all_gather(out, in, "doctor").wait();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return static_cast<double>((mesh.size() - 1) * kNumel * in.element_size()) / median(seconds);
}

/// What ranks that this process starts measure: memory that they and it share.
struct SharedRate {
  double* value;
  SharedRate() {
    void* const memory =
        ::mmap(nullptr, sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, ErrorKind::Io, "zero doctor", "mmap failed", "end other programs");
    value = new (memory) double(0);
  }
  ~SharedRate() { ::munmap(value, sizeof(double)); }
  SharedRate(const SharedRate&) = delete;
  SharedRate& operator=(const SharedRate&) = delete;
};

Check local_ranks_check(int ranks) {
  const SharedRate rate;
  LaunchOptions options;
  options.ranks = ranks;
  options.body = [&rate] {
    const Mesh mesh = Mesh::from_environment();
    const double found = gather_rate(mesh);
    if (mesh.rank() == 0) *rate.value = found;
    return 0;
  };
  const std::string name = std::to_string(ranks) + " ranks here";
  if (const int exit = launch(options); exit != 0)
    return {name, "ended with code " + std::to_string(exit), Check::Level::Failed, "what they say is above"};
  return {name, "meet, and gather " + rate_text(*rate.value) + " each"};
}

// The differences of the hosts' clocks, as far as a barrier tells.
Check clock_check(const Mesh& mesh) {
  mesh.world().barrier("clocks");
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const at::Tensor ends = at::zeros({2}, at::kDouble);
  ends[0] = now;
  ends[1] = -now;
  mesh.world().all_reduce(ends, Group::Reduce::Max, "clocks").wait();
  const double apart = ends[0].item<double>() + ends[1].item<double>();
  char text[64];
  std::snprintf(text, sizeof text, "%.3f s apart", apart);
  return warning_if(apart > kClockDifference_s, "clocks", text, "run an NTP client on every host");
}

// Ranks of a host that come one after the other share layers and copies; others talk over the network.
Check order_check(const std::vector<std::string>& hosts) {
  const std::set<std::string> different(hosts.begin(), hosts.end());
  size_t changes = 0;
  for (size_t rank = 1; rank < hosts.size(); ++rank) changes += hosts[rank] != hosts[rank - 1] ? 1 : 0;
  const bool dealt_out = changes >= different.size();
  return warning_if(dealt_out, "order of ranks",
                    std::to_string(different.size()) + " hosts, the ranks of each " +
                        (dealt_out ? "among those of others" : "one after the other"),
                    "start a host's ranks one after the other: mpirun --map-by slot, srun -m block");
}

std::vector<Check> ranks_checks(const Mesh& mesh, const std::string& disk) {
  const std::string host = detail::host_identity("");
  const std::vector<std::string> hosts = detail::gather_text(mesh, mesh.world(), host, "hosts");
  const bool speaks = std::find(hosts.begin(), hosts.end(), host) - hosts.begin() == mesh.rank();
  ordered_json mine = ordered_json::array();
  if (speaks) {
    const std::string name = detail::host_name("");
    for (const Check& check : machine_checks(disk))
      mine.push_back({name + ": " + check.name, check.value, static_cast<int>(check.level), check.advice});
  }
  std::vector<Check> all;
  for (const std::string& text : detail::gather_text(mesh, mesh.world(), mine.dump(), "checks"))
    for (const auto& one : ordered_json::parse(text))
      all.push_back({one[0], one[1], static_cast<Check::Level>(one[2].get<int>()), one[3]});
  all.push_back(
      {std::to_string(mesh.size()) + " ranks", "meet, and gather " + rate_text(gather_rate(mesh)) + " each"});
  if (std::any_of(hosts.begin(), hosts.end(), [&](const std::string& other) { return other != host; }))
    all.push_back(order_check(hosts));
  all.push_back(clock_check(mesh));
  return all;
}

int print(const std::vector<Check>& checks, bool json) {
  bool failed = false;
  size_t width = 0;
  for (const Check& check : checks) {
    failed = failed || check.level == Check::Level::Failed;
    width = std::max(width, check.name.size());
  }
  if (json) {
    ordered_json list = ordered_json::array();
    for (const Check& check : checks)
      list.push_back({{"check", check.name},
                      {"value", check.value},
                      {"level", to_string(check.level)},
                      {"advice", check.advice}});
    std::cout << ordered_json{{"version", ZERO_VERSION}, {"checks", list}}.dump(2) << "\n";
    return failed ? 1 : 0;
  }
  for (const Check& check : checks) {
    std::string level(to_string(check.level));
    level.resize(9, ' ');
    std::cout << level << check.name << std::string(width + 2 - check.name.size(), ' ') << check.value
              << "\n";
    if (!check.advice.empty()) std::cout << std::string(9, ' ') << check.advice << "\n";
  }
  return failed ? 1 : 0;
}

}  // namespace

int run_doctor(int argc, char** argv) {
  DoctorArguments arguments;
  CLI::App app(
      "zero doctor [OPTIONS]\n"
      "Looks at what training needs of this machine, and says what to change: processor, memory,\n"
      "limits, disk, ranks that meet. Started by a launcher on several hosts it looks at each of\n"
      "them, the network between them and their clocks.");
  app.add_option("--disk", arguments.disk, "directory in which states on a disk would be")
      ->capture_default_str();
  app.add_option("-n,--ranks", arguments.ranks, "to start here [2]")->check(at_least_one());
  app.add_flag("--json", arguments.json, "one JSON object instead of lines");
  if (!parse(app, argc, argv)) return 0;
  if (started_by_launcher()) {
    require(arguments.ranks == 0, ErrorKind::Config, "--ranks", "a launcher has started the ranks",
            "leave --ranks out under a launcher");
    const Mesh mesh = Mesh::from_environment();
    const std::vector<Check> checks = ranks_checks(mesh, arguments.disk);
    return mesh.rank() == 0 ? print(checks, arguments.json) : 0;
  }
  // The ranks first: they are copies of this process, which must have one thread then.
  const Check ranks = local_ranks_check(arguments.ranks == 0 ? 2 : arguments.ranks);
  std::vector<Check> checks = machine_checks(arguments.disk);
  checks.push_back(ranks);
  return print(checks, arguments.json);
}

}  // namespace zero::tool
