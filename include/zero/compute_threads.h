#pragma once
// The threads that compute on CPU, and the cores they run on.

#include <span>
#include <vector>

namespace zero {

/// Sets the number of compute threads and lets each of them treat denormal numbers as zero: they cost a
/// hundred times a normal one's time, and vanish in sums anyway. For the calling thread and the pool it uses.
void prepare_compute_threads(int threads);

/// The cores of `allowed` that belong to one of `ranks` ranks: equal runs of neighbours, the first ranks one
/// more where it does not divide; with more ranks than cores, one core each in turn.
std::vector<int> cores_of_rank(std::span<const int> allowed, int rank, int ranks);

/// Keeps this process, and threads it starts from now on, on its rank's part of the cores that it may use.
/// Call it before anything computes. Good where the ranks have the host to themselves: two jobs that both do
/// it share the same cores. Returns the cores. Throws Io where the kernel refuses.
std::vector<int> bind_to_cores(int local_rank, int local_ranks);

}  // namespace zero
