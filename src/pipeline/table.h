#pragma once
// A pipeline's schedule as a table: what every rank does, in order. Data only, so that it can be proved
// before anything runs.

#include <cstdint>
#include <string>
#include <vector>

namespace zero::pipeline {

/// Backward is both of what follows it: the gradient of a stage's input, which the stage before waits for,
/// and that of its weights, which nobody waits for (Qi et al., arXiv 2401.10241).
enum class Pass : uint8_t { Forward, Backward, BackwardInput, BackwardWeight };

/// Which stages a rank with several chunks of the model holds. Loop: rank r has stages r, r + ranks, ...
/// (Narayanan et al., arXiv 2104.04473); V: rank r has stages r and 2 * ranks - 1 - r, so that the first rank
/// has the last stage too.
enum class Placement : uint8_t { Loop, V };

struct Shape {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;  // stages a rank; with V: 2
  Placement placement = Placement::Loop;

  int stages() const { return ranks * chunks; }
  int stage_of(int rank, int chunk) const;
  int rank_of(int stage) const;
  int chunk_of(int stage) const;
};

struct Action {
  Pass pass = Pass::Forward;
  int chunk = 0, micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct Table {
  Shape shape;
  std::vector<std::vector<Action>> rows;  // by rank
};

/// Throws Config for sizes below 1, for V with other than 2 chunks, and beyond 4096 ranks, 64 chunks, 65,536
/// micro-batches, or 4,194,304 forwards in all.
void check_shape(const Shape& shape);

/// "F3", "B3", "I3", "W3"; with several chunks "F3.1": micro-batch 3 of chunk 1.
std::string to_string(const Action& action, const Shape& shape);

/// Throws Internal, with the rank and the action, unless every micro-batch goes once forward and once
/// backward (whole, or input before weights) through every stage and the rows, each in its order, come to an
/// end: no rank waits for what a waiting rank has yet to do.
void check_table(const Table& table);

}  // namespace zero::pipeline
