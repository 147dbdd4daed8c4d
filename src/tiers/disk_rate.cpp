#include "tiers/disk_rate.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/files.h"
#include "zero/error.h"

namespace zero::tiers {

DiskRate measure_disk(DiskFileOptions options, int64_t bytes) {
  constexpr int64_t kMostExtentBytes = int64_t{32} << 20;
  const int64_t extent_bytes = std::min(kMostExtentBytes, round_up(bytes, kAlignment));
  const int64_t count = std::max<int64_t>(1, bytes / extent_bytes);
  options.bytes = extent_bytes * count;
  DiskFile file(std::move(options));
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(extent_bytes))), &std::free);
  if (!memory) throw std::bad_alloc();
  std::memset(memory.get(), 7, static_cast<size_t>(extent_bytes));
  std::vector<DiskFile::Extent> extents;
  for (int64_t i = 0; i < count; ++i) extents.push_back(file.add_extent(extent_bytes));
  const auto rate = [&](auto start) {
    const auto began = std::chrono::steady_clock::now();
    std::vector<DiskFile::Ticket> tickets;
    for (const DiskFile::Extent extent : extents) tickets.push_back(start(extent));
    for (const DiskFile::Ticket ticket : tickets) file.wait(ticket);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    return static_cast<double>(extent_bytes * count) / std::max(took.count(), 1e-9);
  };
  DiskRate result;
  result.write = rate([&](DiskFile::Extent extent) { return file.write(extent, memory.get(), "measured"); });
  result.read = rate([&](DiskFile::Extent extent) { return file.read(extent, memory.get(), "measured"); });
  return result;
}

int64_t free_disk_bytes(const std::filesystem::path& directory, const std::string& key) {
  // A file of no bytes meets every obstacle but space.
  const DiskFile probe({.directory = directory, .bytes = 0, .key = key});
  struct statvfs space {};
  require(::statvfs(directory.c_str(), &space) == 0, ErrorKind::Io, key,
          directory.string() + " cannot be used: " + std::strerror(errno), remedy_for(errno));
  const double free = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  return static_cast<int64_t>(std::min(free, 9e18));
}

}  // namespace zero::tiers
