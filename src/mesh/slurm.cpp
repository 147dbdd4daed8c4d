#include "mesh/slurm.h"

#include <charconv>
#include <vector>

#include "zero/error.h"

namespace zero::detail {
namespace {

[[noreturn]] void unreadable(const char* what, std::string_view text) {
  fail(ErrorKind::Config, std::string("Slurm's ") + what, "cannot read \"" + std::string(text) + "\"",
       "set MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE yourself");
}

// Cuts at commas outside brackets.
std::vector<std::string_view> items(const char* what, std::string_view text) {
  std::vector<std::string_view> result;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    char c = i < text.size() ? text[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) unreadable(what, text);
    if (c != ',' || depth != 0) continue;
    if (i == begin) unreadable(what, text);
    result.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  if (depth != 0) unreadable(what, text);
  return result;
}

int number(const char* what, std::string_view text, std::string_view whole) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) unreadable(what, whole);
  return value;
}

constexpr const char* kHosts = "list of hosts";
constexpr const char* kTasks = "tasks per node";

// "01-04" -> {"01", "04"}; "7" -> {"7", "7"}
struct Range {
  std::string_view first, last;
};
Range range(std::string_view text) {
  size_t dash = text.find('-');
  if (dash == std::string_view::npos) return {text, text};
  return {text.substr(0, dash), text.substr(dash + 1)};
}

}  // namespace

std::string slurm_first_host(std::string_view nodes) {
  // Several bracket groups in one name ("rack[1-2]n[1-4]") take the first of each.
  std::string host;
  std::string_view rest = items(kHosts, nodes).front();
  while (!rest.empty()) {
    size_t open = rest.find('[');
    host += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    size_t close = rest.find(']', open);
    std::string_view inside = rest.substr(open + 1, close - open - 1);
    std::string_view first = range(items(kHosts, inside).front()).first;
    number(kHosts, first, nodes);
    host += first;
    rest.remove_prefix(close + 1);
  }
  return host;
}

int slurm_host_count(std::string_view nodes) {
  int count = 0;
  for (std::string_view item : items(kHosts, nodes)) {
    int product = 1;
    for (size_t open; (open = item.find('[')) != std::string_view::npos;) {
      size_t close = item.find(']', open);
      int inside = 0;
      for (std::string_view part : items(kHosts, item.substr(open + 1, close - open - 1))) {
        Range ends = range(part);
        int span = number(kHosts, ends.last, nodes) - number(kHosts, ends.first, nodes) + 1;
        if (span < 1) unreadable(kHosts, nodes);
        inside += span;
      }
      product *= inside;
      item.remove_prefix(close + 1);
    }
    count += product;
  }
  return count;
}

int slurm_tasks_on_node(std::string_view tasks, int node) {
  for (std::string_view item : items(kTasks, tasks)) {
    size_t open = item.find("(x");
    int each = number(kTasks, item.substr(0, open), tasks);
    int repeat = 1;
    if (open != std::string_view::npos) {
      if (item.back() != ')') unreadable(kTasks, tasks);
      repeat = number(kTasks, item.substr(open + 2, item.size() - open - 3), tasks);
    }
    if (node < repeat) return each;
    node -= repeat;
  }
  unreadable(kTasks, tasks);
}

}  // namespace zero::detail
