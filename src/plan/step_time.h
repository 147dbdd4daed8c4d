#pragma once
// How long a step takes on a described cluster: arithmetic on what a rank computes, moves and sends.
//
// A forward's products run at the described rate times its efficiency; everything else is bound by memory,
// and writes and reads once what it leaves for backward (Korthikanti et al. 2022, arXiv 2205.05198, have its
// bytes). A backward does both twice. Collectives are rings; those along "tp" are waited for, those along
// "dp" go on beside computation where they may.

#include <cstdint>

#include "pipeline/schedules.h"
#include "plan/cluster.h"
#include "zero/axis_traffic.h"

namespace zero {

/// How ranks are laid out, and what a step does.
struct StepLayout {
  int dp = 1, tp = 1, pp = 1;
  pipeline::Kind schedule = pipeline::Kind::OneFOneB;
  int chunks = 1;  // of an interleaved schedule
  int64_t micro_batches = 1;
  bool recompute = false;  // every layer: backward begins with another forward
  bool overlap = true;     // collectives along "dp" beside computation
};

/// What travels along "dp" in a step of a rank: bytes, an all-reduce twice.
struct DataTraffic {
  double bytes = 0;
  double calls = 0;
  // Computation that may hide it: forwards and backwards of so many micro-batches.
  double beside_forwards = 1, beside_backwards = 1;
};

/// Of one rank and micro-batch, the heaviest rank of a pipeline's.
struct StepWork {
  Dtype dtype = Dtype::bf16;
  double product_flops = 0;  // of a forward's products with weights: backward takes as many for inputs, and
                             // for weights again
  double score_flops = 0;  // of a forward's attention: backward takes twice as many, none of them for weights
  double kept_bytes = 0;   // that a forward leaves for backward, with nothing recomputed
  // Of kept_bytes' and flops' rank, what all ranks have on average: what a rank that waits waits for.
  double mean_of_heaviest = 1;
  TensorTraffic tensor = {};  // along "tp", forward and backward
  double message_bytes = 0;   // between stages
  DataTraffic data = {};
  double optimizer_bytes = 0;  // that the update reads and writes
  // Of a step over all ranks: operations of products and scores, forward and backward, and tokens.
  double all_flops = 0, tokens = 0;
  double again_flops = 0;  // and of its recomputation, where there is one
};

/// Seconds of a step, by what they go to; they add up.
struct StepTime {
  double compute_s = 0;   // products, scores and what memory binds, recomputation too
  double tensor_s = 0;    // collectives along "tp"
  double bubble_s = 0;    // waiting for other stages
  double pipeline_s = 0;  // and for messages
  double data_s = 0;      // collectives along "dp" beside which nothing is computed
  double data_all_s = 0;  // all of them; no part of the sum
  double optimizer_s = 0;
  double flops = 0;  // a device and second, those of recomputation counted (as in arXiv 2104.04473)
  double tokens_per_s = 0;

  double step_s() const { return compute_s + tensor_s + bubble_s + pipeline_s + data_s + optimizer_s; }
  double bubble() const { return bubble_s / step_s(); }
};

/// `exact_schedule`: the schedule is played; otherwise its formula is taken, which for ZbV and Search is that
/// of ZbH2 (no bubble for equal halves). Throws Config for sizes that make_schedule() refuses.
StepTime time_of_step(const Cluster& cluster, const StepLayout& layout, const StepWork& work,
                      bool exact_schedule);

/// What ranks wait in a step by formula: gpipe and 1F1B (p - 1)(F + I + W), interleaved a chunk's share of
/// it, ZB-H1 (p - 1)(F + I - W), ZB-H2 (p - 1)(F + I - 2 W) (arXiv 2104.04473, 2401.10241).
double bubble_by_formula(const StepLayout& layout, const pipeline::StageCosts& costs);

}  // namespace zero
