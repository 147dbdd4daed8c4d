#include "pipeline/table.h"

#include "pipeline/weaver.h"
#include "zero/error.h"

namespace zero::pipeline {
namespace {

void check_size(const char* what, int value, int most) {
  require(value >= 1 && value <= most, ErrorKind::Config, "pipeline",
          std::string(what) + " is " + std::to_string(value) + ", expected 1 to " + std::to_string(most));
}

[[noreturn]] void broken(int rank, const std::string& problem) {
  fail(ErrorKind::Internal, "pipeline schedule, rank " + std::to_string(rank), problem);
}

void check_action(const Table& table, int rank, const Action& action) {
  const Shape& shape = table.shape;
  if (action.chunk < 0 || action.chunk >= shape.chunks || action.micro_batch < 0 ||
      action.micro_batch >= shape.micro_batches)
    broken(rank, "there is no " + to_string(action, shape));
}

}  // namespace

int Shape::stage_of(int rank, int chunk) const {
  if (placement == Placement::Loop) return chunk * ranks + rank;
  return chunk == 0 ? rank : 2 * ranks - 1 - rank;
}

int Shape::rank_of(int stage) const {
  if (placement == Placement::Loop) return stage % ranks;
  return stage < ranks ? stage : 2 * ranks - 1 - stage;
}

int Shape::chunk_of(int stage) const { return stage / ranks; }

void check_shape(const Shape& shape) {
  check_size("ranks", shape.ranks, 4096);
  check_size("micro-batches", shape.micro_batches, 65536);
  check_size("chunks", shape.chunks, 64);
  const int64_t passes = int64_t{shape.stages()} * shape.micro_batches;
  require(passes <= int64_t{1} << 22, ErrorKind::Config, "pipeline",
          std::to_string(shape.stages()) + " stages and " + std::to_string(shape.micro_batches) +
              " micro-batches are " + std::to_string(passes) + " forwards, expected at most 4194304");
  require(shape.placement == Placement::Loop || shape.chunks == 2, ErrorKind::Config, "pipeline",
          "chunks is " + std::to_string(shape.chunks) + ", expected 2 where stages lie in a V");
}

std::string to_string(const Action& action, const Shape& shape) {
  const char* letters[] = {"F", "B", "I", "W"};
  const std::string text = letters[static_cast<int>(action.pass)] + std::to_string(action.micro_batch);
  return shape.chunks == 1 ? text : text + "." + std::to_string(action.chunk);
}

void check_table(const Table& table) {
  check_shape(table.shape);
  if (static_cast<int>(table.rows.size()) != table.shape.ranks)
    broken(0, "the table has " + std::to_string(table.rows.size()) + " rows for " +
                  std::to_string(table.shape.ranks) + " ranks");
  for (int rank = 0; rank < table.shape.ranks; ++rank)
    for (const Action& action : table.rows[rank]) check_action(table, rank, action);
  replay(table, StageCosts{});
}

}  // namespace zero::pipeline
