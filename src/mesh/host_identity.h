#pragma once
// Which ranks can share memory: those that the same kernel runs, for the same user, where they see each
// other's processes.

#include <string>

namespace zero::detail {

/// Equal for ranks that can share memory, different for others. `given`, or the environment's ZERO_HOST where
/// that is empty, tells apart ranks that are to be treated as on different hosts.
std::string host_identity(const std::string& given);

/// For people: what was declared, else the machine's name. One line.
std::string host_name(const std::string& given);

}  // namespace zero::detail
