#include "plan/layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/glob.h"
#include "base/shape_text.h"
#include "zero/error.h"

namespace zero {
namespace {

// Largest padded model: leaves room for every product with bytes per element that the plan makes.
constexpr int64_t kMaxTotalNumel = int64_t{1} << 56;
constexpr int64_t kMaxAlignmentNumel = int64_t{1} << 30;

// One tensor of the tree: a parameter with all its names.
struct Entry {
  const ParameterSpec* spec;
  std::string module;  // full name of the module it stands in
  std::vector<std::string> aliases;
  bool trainable;
  int64_t numel;
};

// Parameters that stay together unless dtype or trainability divide them. Indices into the entries.
struct Chunk {
  std::string name;
  std::vector<size_t> entries;
};

// "a.b" for "a.b.c" and "a.b.d": whole components only.
std::string common_path(const std::string& a, const std::string& b) {
  size_t last_dot = 0, i = 0;
  for (; i < a.size() && i < b.size() && a[i] == b[i]; ++i)
    if (a[i] == '.') last_dot = i;
  bool whole = (i == a.size() || a[i] == '.') && (i == b.size() || b[i] == '.');
  return a.substr(0, whole ? i : last_dot);
}

// Walks the tree in module order and cuts it into chunks.
class Grouping {
 public:
  Grouping(int64_t group_numel, ShardUnit shard_unit) : group_numel_(group_numel), shard_unit_(shard_unit) {}

  void walk(const ModuleSpec& module) {
    const bool by_tensor = shard_unit_ == ShardUnit::Tensor;
    for (const ParameterSpec& parameter : module.parameters)
      if (auto entry = place(parameter, module.name))
        by_tensor ? chunks.push_back({parameter.name, {*entry}}) : add_loose(*entry);
    for (const ModuleSpec& child : module.children)
      module.is_list && !by_tensor ? add_element(child) : walk(child);
    if (module.is_list) close_group();
  }

  void close_group() {
    if (group_.entries.empty()) return;
    chunks.push_back(std::exchange(group_, {}));
    group_total_ = 0;
  }

  std::vector<Entry> entries;
  std::vector<Chunk> chunks;

 private:
  // Records a name; an index only for the first name of a tensor.
  std::optional<size_t> place(const ParameterSpec& parameter, const std::string& module) {
    require(names_.insert(parameter.name).second, ErrorKind::Config, parameter.name,
            "two parameters have this name", "give every parameter its full, unique name");
    int64_t numel = parameter.numel();
    require(
        !parameter.trainable || is_floating(parameter.dtype), ErrorKind::Config, parameter.name,
        "a trainable parameter needs a floating-point dtype, got " + std::string(to_string(parameter.dtype)),
        "mark it as not trainable");
    if (parameter.identity >= 0) {
      auto [known, is_new] = by_identity_.emplace(parameter.identity, entries.size());
      if (!is_new) {
        tie(entries[known->second], parameter);
        return std::nullopt;
      }
    }
    entries.push_back({&parameter, module, {}, parameter.trainable, numel});
    return entries.size() - 1;
  }

  static void tie(Entry& first, const ParameterSpec& second) {
    const ParameterSpec& spec = *first.spec;
    require(spec.shape == second.shape && spec.dtype == second.dtype, ErrorKind::Config,
            spec.name + " and " + second.name,
            "tied parameters disagree: " + std::string(to_string(spec.dtype)) + shape_text(spec.shape) +
                " and " + std::string(to_string(second.dtype)) + shape_text(second.shape),
            "tied names must mean one tensor");
    first.aliases.push_back(second.name);
    first.trainable |= second.trainable;
  }

  void add_loose(size_t entry) {
    int64_t numel = entries[entry].numel;
    const std::string& module = entries[entry].module;
    if (numel > group_numel_ - group_total_) close_group();
    group_.name = group_.entries.empty() ? module : common_path(group_.name, module);
    group_.entries.push_back(entry);
    group_total_ += numel;
  }

  void add_element(const ModuleSpec& element) {
    close_group();
    Chunk chunk{element.name, {}};
    collect(element, chunk);
    if (!chunk.entries.empty()) chunks.push_back(std::move(chunk));
  }

  void collect(const ModuleSpec& module, Chunk& chunk) {
    for (const ParameterSpec& parameter : module.parameters)
      if (auto entry = place(parameter, module.name)) chunk.entries.push_back(*entry);
    for (const ModuleSpec& child : module.children) collect(child, chunk);
  }

  int64_t group_numel_;
  ShardUnit shard_unit_;
  Chunk group_;
  int64_t group_total_ = 0;
  std::set<std::string> names_;
  std::map<int64_t, size_t> by_identity_;
};

std::string make_unique(const std::string& name, std::set<std::string>& taken) {
  std::string candidate = name;
  for (int i = 2; !taken.insert(candidate).second; ++i) candidate = name + "#" + std::to_string(i);
  return candidate;
}

// Turns chunks into units: one dtype and one trainability each, with offsets.
class UnitBuilder {
 public:
  UnitBuilder(const LayoutOptions& options, const Dtype* dtype_of_floats)
      : options_(options), dtype_of_floats_(dtype_of_floats), matched_(options.fp32_patterns.size(), false) {}

  void add(const Chunk& chunk, const std::vector<Entry>& entries) {
    std::vector<UnitLayout> parts;
    for (size_t index : chunk.entries) {
      const Entry& entry = entries[index];
      Dtype dtype = dtype_of(entry);
      const bool persistent = is_persistent(entry);
      auto part = std::find_if(parts.begin(), parts.end(), [&](const UnitLayout& unit) {
        return unit.dtype == dtype && unit.trainable == entry.trainable && unit.persistent == persistent;
      });
      if (part == parts.end()) {
        parts.emplace_back();
        part = parts.end() - 1;
        part->dtype = dtype;
        part->trainable = entry.trainable;
        part->persistent = persistent;
      }
      append(*part, entry);
    }
    std::string name = make_unique(chunk.name.empty() ? "root" : chunk.name, chunk_names_);
    for (UnitLayout& part : parts) part.name = make_unique(name + suffix(part, parts), unit_names_);
    for (UnitLayout& part : parts) {
      finish(part);
      units.push_back(std::move(part));
    }
  }

  void require_all_match() const {
    for (size_t i = 0; i < matched_.size(); ++i)
      require(matched_[i], ErrorKind::Config, "fp32_parameters",
              "\"" + options_.fp32_patterns[i] + "\" matches no floating-point parameter",
              "patterns cover the full dotted name, e.g. \"*.ln_1.*\"");
  }

  std::vector<UnitLayout> units;

 private:
  bool is_persistent(const Entry& entry) {
    const int64_t left = options_.persistent_total_numel - persistent_;
    if (entry.numel >= options_.persistent_numel || entry.numel > left) return false;
    persistent_ += entry.numel;
    return true;
  }

  Dtype dtype_of(const Entry& entry) {
    const ParameterSpec& spec = *entry.spec;
    bool is_wide = false;
    for (size_t i = 0; i < options_.fp32_patterns.size() && is_floating(spec.dtype); ++i) {
      const std::string& pattern = options_.fp32_patterns[i];
      const bool matches =
          glob_matches(pattern, spec.name) ||
          std::any_of(entry.aliases.begin(), entry.aliases.end(),
                      [&](const std::string& alias) { return glob_matches(pattern, alias); });
      matched_[i] = matched_[i] || matches;
      is_wide = is_wide || matches;
    }
    if (is_wide) return Dtype::f32;
    return dtype_of_floats_ && is_floating(spec.dtype) ? *dtype_of_floats_ : spec.dtype;
  }

  static std::string suffix(const UnitLayout& unit, const std::vector<UnitLayout>& parts) {
    bool dtypes = false, frozen = false, persistent = false;
    for (const UnitLayout& other : parts) {
      dtypes |= other.dtype != unit.dtype;
      frozen |= !unit.trainable && other.trainable;
      persistent |= unit.persistent && !other.persistent;
    }
    return (dtypes ? "#" + std::string(to_string(unit.dtype)) : "") + (frozen ? "#frozen" : "") +
           (persistent ? "#persistent" : "");
  }

  void append(UnitLayout& unit, const Entry& entry) const {
    int64_t end = unit.parameters.empty() ? 0 : unit.parameters.back().end();
    const ParameterSpec& spec = *entry.spec;
    ParameterPart part = spec.part;
    if (part.global_shape.empty()) {
      part.global_shape = spec.shape;
      part.box = Box::whole(spec.shape);
    }
    const auto is_inside = [&](const Box& box) { return box.is_inside(part.global_shape); };
    const bool are_inside =
        is_inside(part.box) && std::all_of(part.beside.begin(), part.beside.end(), is_inside);
    require(are_inside && part.shape() == spec.shape, ErrorKind::Config, spec.name,
            "its shape is " + shape_text(spec.shape) + ", but it is said to hold " + to_string(part.box) +
                " of " + shape_text(part.global_shape),
            "give the box that this rank's module holds");
    unit.parameters.push_back({.name = entry.spec->name,
                               .aliases = entry.aliases,
                               .shape = entry.spec->shape,
                               .offset = round_up(end, options_.alignment_numel),
                               .numel = entry.numel,
                               .part = std::move(part)});
    unit.numel += entry.numel;
    check_size(unit.parameters.back().end());
  }

  void finish(UnitLayout& unit) {
    if (unit.numel == 0) {
      for (UnitParameter& parameter : unit.parameters) parameter.offset = 0;
      return;
    }
    int64_t ranks = options_.shard_ranks;
    unit.shard_numel = round_up((unit.parameters.back().end() + ranks - 1) / ranks, options_.alignment_numel);
    unit.padded_numel = unit.shard_numel * ranks;
    total_ += unit.padded_numel;
    check_size(total_);
  }

  static void check_size(int64_t numel) {
    require(numel <= kMaxTotalNumel, ErrorKind::Config, "model",
            "more than " + std::to_string(kMaxTotalNumel) + " elements with padding", "check the shapes");
  }

  LayoutOptions options_;
  const Dtype* dtype_of_floats_;
  std::vector<bool> matched_;  // by pattern
  int64_t total_ = 0, persistent_ = 0;
  std::set<std::string> chunk_names_, unit_names_;
};

void check(const LayoutOptions& options, const Dtype* dtype_of_floats) {
  for (const std::string& pattern : options.fp32_patterns)
    require(is_glob(pattern), ErrorKind::Config, "fp32_parameters",
            "\"" + pattern + "\" is not a glob over parameter names");
  auto at_least_one = [](int64_t value, const char* name) {
    require(value >= 1, ErrorKind::Config, name, "expected at least 1, got " + std::to_string(value));
  };
  at_least_one(options.shard_ranks, "shard_ranks");
  at_least_one(options.alignment_numel, "alignment_numel");
  at_least_one(options.group_numel, "group_numel");
  require(options.persistent_numel >= 0 && options.persistent_total_numel >= 0, ErrorKind::Config,
          "persistent_numel",
          "expected 0 or more elements, got " + std::to_string(options.persistent_numel) + " of " +
              std::to_string(options.persistent_total_numel));
  require(options.alignment_numel <= kMaxAlignmentNumel / options.shard_ranks, ErrorKind::Config,
          "alignment_numel",
          std::to_string(options.alignment_numel) + " elements on each of " +
              std::to_string(options.shard_ranks) + " ranks is more padding than makes sense");
  require(!dtype_of_floats || is_floating(*dtype_of_floats), ErrorKind::Config, "dtype",
          "expected a floating-point dtype for the parameters" +
              (dtype_of_floats ? ", got " + std::string(to_string(*dtype_of_floats)) : std::string()));
}

}  // namespace

int64_t ParameterSpec::numel() const {
  bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  int64_t product = 1;
  for (int64_t size : shape) {
    require(size >= 0, ErrorKind::Config, name, "negative size in shape " + shape_text(shape));
    if (empty) continue;
    auto next = checked_multiply(product, size);
    require(next && *next <= kMaxTotalNumel, ErrorKind::Config, name,
            "shape " + shape_text(shape) + " is too large");
    product = *next;
  }
  return empty ? 0 : product;
}

std::vector<UnitLayout> make_layout(const ModuleSpec& root, const LayoutOptions& options,
                                    const Dtype* dtype_of_floats) {
  check(options, dtype_of_floats);
  Grouping grouping(options.group_numel, options.shard_unit);
  grouping.walk(root);
  grouping.close_group();
  UnitBuilder builder(options, dtype_of_floats);
  for (const Chunk& chunk : grouping.chunks) builder.add(chunk, grouping.entries);
  builder.require_all_match();
  return std::move(builder.units);
}

}  // namespace zero
