#pragma once
// Slurm's compressed lists: hosts "node[01-04,7],login1" and tasks "2(x3),1".

#include <string>
#include <string_view>

namespace zero::detail {

/// "node01" of "node[01-04,7]". Throws Config for a list that cannot be read.
std::string slurm_first_host(std::string_view nodes);

/// 5 of "node[01-04,7]". Throws Config.
int slurm_host_count(std::string_view nodes);

/// Tasks on the node of that index: 1 of ("2(x3),1", 3). Throws Config for an unreadable list or an index
/// beyond it.
int slurm_tasks_on_node(std::string_view tasks, int node);

}  // namespace zero::detail
