#include "budget.h"

#include "zero/config_sections.h"
#include "zero/plan_report.h"

namespace zero::tool {

int64_t budget_of(const std::string& text, int64_t unset) {
  if (text.empty()) return unset;
  if (text == "0") return 0;  // one unit at a time
  return text == "all" ? kAllBytes : parse_bytes(text, "--budget");
}

}  // namespace zero::tool
