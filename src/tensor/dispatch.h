#pragma once
// Takes the operators that read parallel tensors to their rules.

namespace zero::detail {

/// From now on, for the life of the process: the dispatcher's table is the process's own. Operators on other
/// tensors do not notice.
void register_parallel_operators();

}  // namespace zero::detail
