#pragma once
// Bytes of a model as text that a terminal may be shown.

#include <string>
#include <string_view>

namespace zero::tool {

/// Valid UTF-8: bytes that belong to no character become U+FFFD each; those of a character that is not
/// finished at the end are left out.
std::string printable(std::string_view bytes);

}  // namespace zero::tool
