#include "plan/largest_part.h"

#include <cstdint>

namespace zero {
namespace {

double most_of(int64_t parts, int ranks) {
  return static_cast<double>((parts + ranks - 1) / ranks) / static_cast<double>(parts);
}

// Elements of the matrices for one output or input of the residual stream, whose size is in all of them.
LargestPart part_of(double attention, double mlp, double heads_share, double mlp_share) {
  return {.products = (attention * heads_share + mlp * mlp_share) / (attention + mlp), .scores = heads_share};
}

LargestPart of(const Gpt2Shape& s, int ranks) {
  const auto width = static_cast<double>(s.width);
  return part_of(4 * width, 8 * width, most_of(s.heads, ranks), most_of(4 * s.width, ranks));
}

LargestPart of(const GptNeoxShape& s, int ranks) {
  return part_of(4 * static_cast<double>(s.width), 2 * static_cast<double>(s.mlp_width),
                 most_of(s.heads, ranks), most_of(s.mlp_width, ranks));
}

LargestPart of(const LlamaShape& s, int ranks) {
  const auto queries = static_cast<double>(2 * s.heads * s.head_width),
             keys = static_cast<double>(2 * s.kv_heads * s.head_width),
             mlp = static_cast<double>(3 * s.mlp_width);
  const bool outnumbered = s.kv_heads < ranks;
  const double of_queries = most_of(outnumbered ? s.heads : s.kv_heads, ranks),
               of_keys = outnumbered ? 1 : of_queries;
  return {.products = (queries * of_queries + keys * of_keys + mlp * most_of(s.mlp_width, ranks)) /
                      (queries + keys + mlp),
          .scores = of_queries};
}

}  // namespace

LargestPart largest_part(const ModelShape& shape, int ranks) {
  return std::visit([&](const auto& s) { return of(s, ranks); }, shape);
}

}  // namespace zero
