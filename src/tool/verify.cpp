// zero verify CHECKPOINT|FILE
#include <chrono>
#include <iostream>
#include <optional>

#include "checkpoint/json.h"
#include "train/older_checkpoint.h"
#include "verbs.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"
#include "zero/token_file.h"

namespace zero::tool {
namespace {

using Clock = std::chrono::steady_clock;

void report_damage(const std::filesystem::path& checkpoint, const std::vector<DamagedPiece>& damaged,
                   size_t pieces) {
  for (const DamagedPiece& piece : damaged)
    std::cout << "damaged: " << piece.file << ": tensor " << checkpoint::in_quotes(piece.tensor)
              << ", elements " << piece.range.begin << " to " << piece.range.end() - 1 << " of "
              << to_string(piece.range.box) << ", at byte " << piece.offset_bytes
              << " of the file: " << piece.problem << "\n";
  std::cout << std::flush;
  const std::filesystem::path older = training::older_checkpoint(checkpoint);
  fail(ErrorKind::Corrupt, checkpoint.string(),
       std::to_string(damaged.size()) + " of " + std::to_string(pieces) +
           " pieces are damaged, the first is " + checkpoint::in_quotes(damaged[0].tensor) + " in " +
           damaged[0].file,
       older.empty() ? "use another checkpoint" : "the checkpoint before it is " + older.string());
}

std::string seconds_since(Clock::time_point begin) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", std::chrono::duration<double>(Clock::now() - begin).count());
  return text;
}

void verify_token_file(const std::string& path) {
  const auto begin = Clock::now();
  const TokenFile file = TokenFile::open(path);
  file.verify();
  std::cout << path << ": good; " << file.size() << " tokens of " << file.width()
            << " bytes, a vocabulary of " << file.vocabulary().size << ", " << seconds_since(begin) << "\n";
}

void verify_checkpoint(const std::filesystem::path& checkpoint) {
  const auto begin = Clock::now();
  std::vector<DamagedPiece> damaged;
  std::optional<CheckpointReader> opened;
  training::naming_older(checkpoint, [&] { damaged = opened.emplace(checkpoint).find_damage(); });
  const CheckpointReader& reader = *opened;
  size_t pieces = 0;
  for (const auto& [name, tensor] : reader.tensors()) pieces += tensor.pieces.size();
  if (!damaged.empty()) report_damage(checkpoint, damaged, pieces);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::cout << checkpoint.string() << ": good; " << reader.tensors().size() << " tensors in " << pieces
            << " pieces, " << human_bytes(reader.bytes_read()) << " (" << reader.bytes_read() << " bytes) in "
            << reader.files().size() << " files, " << seconds_since(begin) << ", "
            << human_bytes(static_cast<int64_t>(static_cast<double>(reader.bytes_read()) / seconds))
            << "/s\n";
}

}  // namespace

int run_verify(int argc, char** argv) {
  std::string path;
  CLI::App app(
      "zero verify CHECKPOINT|FILE\n"
      "Reads a whole checkpoint, or token file, and checks every file and every checksum. Exit status 1: it "
      "is "
      "damaged.");
  app.add_option("checkpoint", path, "a checkpoint, a run directory (its newest), or a token file")
      ->required();
  if (!parse(app, argc, argv)) return 0;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    verify_token_file(path);
  } else {
    verify_checkpoint(find_checkpoint(path));
  }
  return 0;
}

}  // namespace zero::tool
