#include "suspend/trace.h"

#include <algorithm>
#include <limits>
#include <map>

#include "zero/error.h"

namespace zero::detail {
namespace {

bool is_live(const Trace::Value& value, int at) { return value.made_by < at && value.last_read >= at; }

// The storage that stands against a cut there: several live tensors share it, of which a stage would get
// copies, and one is written later. -1: none.
int storage_across(const Trace& trace, int at) {
  std::map<int, int> live;
  for (const Trace::Value& value : trace.values) {
    if (!is_live(value, at)) continue;
    const Trace::Storage& storage = trace.storages[static_cast<size_t>(value.storage)];
    if (storage.last_written < at) continue;
    if (storage.made_by < 0 || ++live[value.storage] > 1) return value.storage;
  }
  return -1;
}

// Outside of what runs without gradients in a forward that has them: the inside of an autograd function has
// no history before the function returns.
bool has_history(const Trace& trace, int at) {
  const auto records = [&](int op) { return trace.operators[static_cast<size_t>(op)].records; };
  const int count = static_cast<int>(trace.operators.size());
  return at == 0 || records(at - 1) || (at < count && records(at));
}

struct Place {
  int at = -1;
  int64_t nbytes = std::numeric_limits<int64_t>::max(), count = 0;
};

Place best_place(const Trace& trace, int first, int last) {
  Place best;
  for (int at = first; at <= last; ++at) {
    if (!has_history(trace, at) || storage_across(trace, at) >= 0) continue;
    Place here{at, 0, 0};
    for (const Trace::Value& value : trace.values)
      if (is_live(value, at)) {
        here.nbytes += value.nbytes;
        ++here.count;
      }
    if (best.at < 0 || std::pair(here.nbytes, here.count) < std::pair(best.nbytes, best.count)) best = here;
  }
  return best;
}

[[noreturn]] void refuse_cut(const Trace& trace, int stage, int last) {
  const int storage = storage_across(trace, last);
  const std::string place = "stage " + std::to_string(stage) + " of a suspended forward";
  if (storage < 0)
    fail(ErrorKind::Unsupported, place, "it would begin inside an autograd function",
         "cut the module at another unit");
  const int writer = trace.storages[static_cast<size_t>(storage)].last_written;
  fail(ErrorKind::Unsupported, place,
       trace.operators[static_cast<size_t>(writer)].name +
           " writes in place to a tensor that stages before it share with another one",
       "make a new tensor there, or cut the module at another unit");
}

}  // namespace

std::vector<int> units_of_operators(const Trace& trace, const UnitsOfSource& units) {
  std::vector<int> found;
  int current = -1;
  for (const Trace::Operator& op : trace.operators) {
    int highest = -1;
    for (const int source : op.sources) {
      // Of the units that a shared parameter is in, the next one; one that came before reads it again.
      int next = current;
      const std::vector<int>& all = units[static_cast<size_t>(source)];
      if (std::find(all.begin(), all.end(), current) == all.end()) {
        const auto later = std::upper_bound(all.begin(), all.end(), current);
        if (later != all.end()) next = *later;
      }
      highest = std::max(highest, next);
    }
    current = std::max(current, highest);
    found.push_back(op.sources.empty() ? -1 : current);
  }
  return found;
}

std::vector<double> costs_of_units(const Trace& trace, const std::vector<int>& unit_of_operator, int units) {
  std::vector<double> costs(static_cast<size_t>(units), 0);
  int current = 0;
  for (size_t op = 0; op < trace.operators.size(); ++op) {
    current = std::max(current, unit_of_operator[op]);
    if (units > 0) costs[static_cast<size_t>(current)] += trace.operators[op].cost;
  }
  return costs;
}

std::vector<StageCut> cut_into_stages(const Trace& trace, const std::vector<int>& unit_of_operator,
                                      const std::vector<int>& stage_of_unit, int stages) {
  const int count = static_cast<int>(trace.operators.size());
  std::vector<StageCut> cuts(1);
  for (int stage = 1; stage < stages; ++stage) {
    int first = cuts.back().at, last = 0;
    while (last < count) {
      const int unit = unit_of_operator[static_cast<size_t>(last)];
      if (unit >= 0 && stage_of_unit[static_cast<size_t>(unit)] >= stage) break;
      ++last;
      if (unit >= 0) first = std::max(first, last);
    }
    const Place place = best_place(trace, first, last);
    if (place.at < 0) refuse_cut(trace, stage, last);
    StageCut cut{.at = place.at, .fills_early = true, .crossing = {}};
    cut.fills_early = place.at > 0 && trace.operators[static_cast<size_t>(place.at - 1)].records;
    for (size_t value = 0; value < trace.values.size(); ++value)
      if (is_live(trace.values[value], place.at)) cut.crossing.push_back(static_cast<int>(value));
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

}  // namespace zero::detail
