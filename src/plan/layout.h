#pragma once
// Cuts a module tree into units and shards.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "zero/plan.h"

namespace zero {

struct LayoutOptions {
  int shard_ranks = 1;           // ranks that share a slab; >= 1
  int64_t alignment_numel = 32;  // every parameter and shard starts at a multiple of it (64 bytes in bf16)
  int64_t group_numel = 4 * 1024 * 1024;  // parameters outside lists are grouped into units up to this size
  ShardUnit shard_unit = ShardUnit::Bucket;
  // Trainable or frozen parameters of fewer elements are persistent, the first ones up to so many elements
  // in all.
  int64_t persistent_numel = 0;
  int64_t persistent_total_numel = std::numeric_limits<int64_t>::max();
  std::vector<std::string> fp32_patterns = {};  // globs of floating parameters that are fp32 whatever else
};

/// Splits a module tree into units, in module order, first touched first:
/// - each element of an outermost ModuleList/Sequential is a unit (nested lists belong to their element);
/// - parameters outside lists are grouped in order up to group_numel (a larger one is a unit alone), never
///   across a list; such a unit is named after the longest common module path, made unique ("": "root");
/// - ShardUnit::Tensor: every parameter is a unit instead, of its own name;
/// - a unit holds one dtype and one trainability, and persistent parameters or others: a module with several
///   becomes several units;
/// - tied parameters stand where their first name stands; trainable if any of the names says so;
/// - units without elements (only zero-sized parameters) stay, with padded_numel 0.
/// `dtype_of_floats`, if not null, replaces the dtype of every floating-point parameter first (the compute
/// dtype), but for those with a name that one of fp32_patterns matches. Throws Config for a pattern that
/// matches no floating parameter, for shard_ranks < 1, alignment < 1, group_numel < 1, duplicate names,
/// negative or overflowing shapes (named), trainable integers, tied parameters that disagree in shape or
/// dtype (both named).
std::vector<UnitLayout> make_layout(const ModuleSpec& root, const LayoutOptions& options,
                                    const Dtype* dtype_of_floats = nullptr);

/// Gradient buckets that may be between packing and adding at a time.
inline constexpr int64_t kBucketsInFlight = 2;

/// A unit's gradient is reduced in buckets: the same piece of each rank's shard, this many elements a rank
/// (the last piece may be smaller), so that shard_ranks pieces are at most reduce_bucket_numel, or one
/// element a rank.
int64_t bucket_piece_numel(const UnitLayout& unit, int shard_ranks, int64_t reduce_bucket_numel);

}  // namespace zero
