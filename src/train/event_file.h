#pragma once
// Event files of TensorBoard: TFRecords of Event messages, written without TensorFlow.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "train/append_file.h"

namespace zero::training {

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78) of bytes.
uint32_t crc32c(std::string_view bytes);

/// A file `events.out.tfevents.SECONDS.HOST.PID` in a directory, which is made where needed. Each record is
/// one write. Not for several threads.
class EventFile {
 public:
  using Scalars = std::span<const std::pair<std::string, double>>;

  /// `first_step`: steps from here on that other files of the directory hold count no more (a SessionLog
  /// START), which is what a resumed run wants. Throws Io.
  EventFile(const std::filesystem::path& directory, int64_t first_step);

  /// One Event with a value of each tag, in fp32 as the format has it. Throws Io naming file and cause.
  void add(int64_t step, Scalars scalars);

 private:
  void write_record(const std::string& message);

  AppendFile file_;
};

}  // namespace zero::training
