#pragma once
// A zip archive of stored entries, written front to back: what torch.load() opens. Archives and entries of
// 4 GiB and more have the zip64 records.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file_io.h"

namespace zero::exporting {

class ZipWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// Entries with sizes or places beyond `most_small` have zip64 records (tests choose it small).
  explicit ZipWriter(const std::filesystem::path& path, uint64_t most_small = 0xfffffffe);

  /// An entry of `bytes` bytes, which `write` hands to the sink it gets. Its data begin at a multiple of 64
  /// bytes of the file.
  void add(const std::string& name, int64_t bytes, const std::function<void(const Sink&)>& write);
  void add(const std::string& name, std::string_view data);

  /// Writes the directory, forces the contents to the disk and closes.
  void finish();

 private:
  struct Entry {
    std::string name;
    uint64_t offset = 0, bytes = 0;
    uint32_t crc = 0;
    bool is_large = false;
  };
  std::string local_header(const Entry& entry) const;
  static std::string central_header(const Entry& entry);
  void put(std::string_view bytes);

  checkpoint::BlockWriter file_;
  uint64_t most_small_;
  std::vector<Entry> entries_;
};

}  // namespace zero::exporting
