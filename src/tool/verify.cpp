// zero verify CHECKPOINT
#include <chrono>
#include <iostream>

#include "checkpoint/json.h"
#include "verbs.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

using Clock = std::chrono::steady_clock;

void report_damage(const std::filesystem::path& checkpoint, const std::vector<DamagedPiece>& damaged,
                   size_t pieces) {
  for (const DamagedPiece& piece : damaged)
    std::cout << "damaged: " << piece.file << ": tensor " << checkpoint::in_quotes(piece.tensor)
              << ", elements " << piece.begin << " to " << piece.begin + piece.numel - 1 << ", at byte "
              << piece.offset_bytes << " of the file: " << piece.problem << "\n";
  std::cout << std::flush;
  fail(ErrorKind::Corrupt, checkpoint.string(),
       std::to_string(damaged.size()) + " of " + std::to_string(pieces) +
           " pieces are damaged, the first is " + checkpoint::in_quotes(damaged[0].tensor) + " in " +
           damaged[0].file,
       "use another checkpoint");
}

}  // namespace

int run_verify(int argc, char** argv) {
  std::string path;
  CLI::App app(
      "zero verify CHECKPOINT\n"
      "Reads a whole checkpoint and checks every file and every checksum. Exit status 1: it is damaged.");
  app.add_option("checkpoint", path, "a checkpoint, or a run directory: its newest")->required();
  if (!parse(app, argc, argv)) return 0;

  const auto begin = Clock::now();
  const std::filesystem::path checkpoint = find_checkpoint(path);
  const CheckpointReader reader(checkpoint);
  const std::vector<DamagedPiece> damaged = reader.find_damage();
  size_t pieces = 0;
  for (const auto& [name, tensor] : reader.tensors()) pieces += tensor.pieces.size();
  if (!damaged.empty()) report_damage(checkpoint, damaged, pieces);

  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  char time[32];
  std::snprintf(time, sizeof time, "%.2f s", seconds);
  std::cout << checkpoint.string() << ": good; " << reader.tensors().size() << " tensors in " << pieces
            << " pieces, " << human_bytes(reader.bytes_read()) << " (" << reader.bytes_read() << " bytes) in "
            << reader.files().size() << " files, " << time << ", "
            << human_bytes(static_cast<int64_t>(static_cast<double>(reader.bytes_read()) / seconds))
            << "/s\n";
  return 0;
}

}  // namespace zero::tool
