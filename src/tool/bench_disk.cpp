#include "bench_disk.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tiers/disk_file.h"

namespace zero::tool {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

double mebibytes(double bytes) { return std::round(bytes / kMebibyte * 10) / 10; }

}  // namespace

SequentialRate sequential_rate(const Mesh& mesh, const OffloadOptions& how) {
  constexpr int64_t kExtentBytes = 64 * kMebibyte, kExtents = 8;
  tiers::DiskFile file({.directory = how.path,
                        .bytes = kExtentBytes * kExtents,
                        .block_bytes = how.block_bytes,
                        .queue_depth = how.queue_depth,
                        .threads = how.threads});
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(tiers::kAlignment, kExtentBytes)), &std::free);
  std::memset(memory.get(), 7, kExtentBytes);
  std::vector<tiers::DiskFile::Extent> extents;
  for (int64_t i = 0; i < kExtents; ++i) extents.push_back(file.add_extent(kExtentBytes));
  const auto rate = [&](auto start) {
    mesh.world().barrier("disk");
    const auto began = std::chrono::steady_clock::now();
    std::vector<tiers::DiskFile::Ticket> tickets;
    for (const auto extent : extents) tickets.push_back(start(extent));
    for (const auto ticket : tickets) file.wait(ticket);
    mesh.world().barrier("disk");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return static_cast<double>(mesh.size() * kExtents * kExtentBytes) / took.count();
  };
  SequentialRate result;
  result.written = rate([&](auto extent) { return file.write(extent, memory.get(), "sequential"); });
  result.read = rate([&](auto extent) { return file.read(extent, memory.get(), "sequential"); });
  return result;
}

void put_offload(nlohmann::ordered_json& record, const BenchArguments& arguments, const Engine& engine,
                 int ranks, const SequentialRate& sequential) {
  const RankPlan& plan = engine.plan().rank;
  record["offload"] = arguments.offload;
  for (const Tier tier : kTiers)
    record["tier_mib"][std::string(to_string(tier))] =
        mebibytes(static_cast<double>(plan.tier_bytes[static_cast<size_t>(tier)]));
  const DiskStats disk = engine.stats().disk;
  if (disk.transport.empty()) return;
  const auto steps = static_cast<double>(arguments.steps);
  const double moved = static_cast<double>(disk.read_bytes + disk.written_bytes);
  record["disk_transport"] = disk.transport;
  record["step_in_backward"] = engine.plan().step_in_backward;
  record["pieces_ahead_a_step"] = std::round(static_cast<double>(disk.pieces_ahead) / steps * 10) / 10;
  record["ring_mib"] = mebibytes(static_cast<double>(disk.ring_bytes));
  record["disk_read_mib_a_step"] = mebibytes(static_cast<double>(disk.read_bytes) / steps);
  record["disk_written_mib_a_step"] = mebibytes(static_cast<double>(disk.written_bytes) / steps);
  record["disk_busy_s_a_step"] = std::round(disk.busy_s / steps * 1e4) / 1e4;
  // Ranks are busy at the same time, and half of what they move is read.
  record["disk_mib_s"] = disk.busy_s > 0 ? mebibytes(moved * ranks / disk.busy_s) : 0.0;
  record["sequential_mib_s"] = mebibytes(2 / (1 / sequential.read + 1 / sequential.written));
  record["sequential_read_mib_s"] = mebibytes(sequential.read);
  record["sequential_write_mib_s"] = mebibytes(sequential.written);
}

}  // namespace zero::tool
