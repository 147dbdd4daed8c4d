#pragma once
// Texts of errors, for those who say the kind themselves.

#include <exception>
#include <string>

namespace zero {

/// what() of an exception, without the kind in front of an Error's: "PLACE: PROBLEM; REMEDY".
std::string text_without_kind(const std::exception& error);

}  // namespace zero
