#include "sharding/axes_agreement.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "compute/host_copies.h"
#include "compute/wait_place.h"
#include "mesh/agree.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

template <class Use>
void for_each_parameter(const Plan& plan, Use use) {
  for (const UnitLayout& unit : plan.units)
    for (const UnitParameter& parameter : unit.parameters) use(parameter);
}

// Tells orders apart (FNV-1a); so small that its square times the ranks is exact.
uint32_t number_of(std::span<const int> units) {
  uint32_t hash = 0;
  for (const int unit : units) hash = (hash ^ static_cast<uint32_t>(unit + 1)) * 16777619U;
  return hash & 0xFFFFF;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

AxesAgreement::AxesAgreement(const Mesh& mesh, const Plan& plan)
    : mesh_(mesh), everyone_(mesh.group("dp")), dp_ranks_(everyone_.size()) {
  for (const UnitLayout& unit : plan.units) unit_names_.push_back(unit.name);
  if (dp_ranks_ != mesh.size()) everyone_ = mesh.world();
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "dp") continue;
    dp_group_ = dp_group_ * axis.size + mesh.group(axis.name).rank();
    dp_groups_ *= axis.size;
  }
  find_copies(mesh, plan);
  number(mesh, plan);
  if (spans_other_axes()) require_same_replicas(mesh, plan);
}

void AxesAgreement::find_copies(const Mesh& mesh, const Plan& plan) {
  for_each_parameter(plan, [&](const UnitParameter& parameter) {
    const auto& over = parameter.part.replicated_over;
    const auto is_first = [&](const std::string& axis) { return mesh.group(axis).rank() == 0; };
    const bool first = std::all_of(over.begin(), over.end(), is_first) && !parameter.part.is_copy;
    is_copy_.push_back(first ? 0 : 1);
  });
}

void AxesAgreement::number(const Mesh& mesh, const Plan& plan) {
  std::string mine;
  for_each_parameter(plan, [&](const UnitParameter& parameter) { mine += parameter.name + "\n"; });
  std::vector<std::string> texts{mine};
  if (spans_other_axes()) texts = gather_text(mesh, everyone_, mine, "parameters");
  std::map<std::string, int64_t, std::less<>> numbers;
  for (const std::string& text : texts)
    for (std::string& name : lines_of(text)) numbers.emplace(std::move(name), std::ssize(numbers));
  for_each_parameter(
      plan, [&](const UnitParameter& parameter) { common_number_.push_back(numbers.at(parameter.name)); });
  common_parameters_ = std::ssize(numbers);
  common_number_on_device_ = copied_to_device(at::tensor(common_number_, at::kLong), mesh.device());
}

// A parameter that is said to be the same along an axis must be the same box there.
void AxesAgreement::require_same_replicas(const Mesh& mesh, const Plan& plan) const {
  for (const Axis& axis : mesh.axes()) {
    if (axis.name == "dp" || axis.size == 1) continue;
    std::string text;
    for_each_parameter(plan, [&](const UnitParameter& parameter) {
      const auto& over = parameter.part.replicated_over;
      if (std::find(over.begin(), over.end(), axis.name) != over.end())
        text += parameter.name + "\t" + to_string(parameter.part.box) + "\n";
    });
    const Group along = mesh.group(axis.name);
    const auto texts = gather_text(mesh, along, text, "replicated parameters");
    for (int rank = 0; rank < along.size(); ++rank)
      require(texts[rank] == texts[0], ErrorKind::Config, "axis " + axis.name,
              "rank " + std::to_string(along.members()[rank]) +
                  " holds other replicated parameters than rank " + std::to_string(along.members()[0]),
              "say in EngineOptions::parts what each rank's module holds");
  }
}

namespace {

std::string boxes_of(const ParameterPart& part) {
  std::string text = to_string(part.box);
  for (const Box& box : part.beside) text += to_string(box);
  return text;
}

/// What a rank has of a parameter.
struct Held {
  std::string boxes;
  int64_t numel = 0;
};

/// By name, of one rank: lines of name, boxes and elements.
std::map<std::string, Held> held_in(const std::string& text) {
  std::map<std::string, Held> held;
  for (const std::string& line : lines_of(text)) {
    const size_t first = line.rfind('\t', line.rfind('\t') - 1), second = line.rfind('\t');
    held.emplace(line.substr(0, first), Held{.boxes = line.substr(first + 1, second - first - 1),
                                             .numel = std::stoll(line.substr(second + 1))});
  }
  return held;
}

/// Elements that the ranks have between them; nothing where all that have some have the same.
std::optional<int64_t> numel_of_parts(std::span<const std::map<std::string, Held>> ranks,
                                      const std::string& name) {
  std::map<std::string, int64_t> parts;
  for (const auto& rank : ranks)
    if (const auto found = rank.find(name); found != rank.end())
      parts.emplace(found->second.boxes, found->second.numel);
  if (parts.size() < 2) return {};
  int64_t numel = 0;
  for (const auto& [boxes, count] : parts) numel += count;
  return numel;
}

}  // namespace

std::vector<AxesAgreement::Cut> AxesAgreement::cuts(const Plan& plan) const {
  std::vector<const UnitParameter*> parameters;
  for_each_parameter(plan, [&](const UnitParameter& parameter) { parameters.push_back(&parameter); });
  std::string mine;
  std::vector<char> is_found(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const UnitParameter& one = *parameters[i];
    is_found[i] = one.part.global_shape == one.shape ? 1 : 0;
    if (is_found[i] == 0)
      mine += one.name + "\t" + boxes_of(one.part) + "\t" + std::to_string(one.numel) + "\n";
  }
  std::vector<Cut> cuts;
  for (const Axis& axis : mesh_.axes()) {
    if (axis.name == "dp" || axis.size == 1) continue;
    std::vector<std::map<std::string, Held>> ranks;
    for (const std::string& text : gather_text(mesh_, mesh_.group(axis.name), mine, "parts of parameters"))
      ranks.push_back(held_in(text));
    Cut cut{.axis = axis.name, .parameters = {}, .counted_elsewhere = {}};
    for (size_t i = 0; i < parameters.size(); ++i) {
      const UnitParameter& one = *parameters[i];
      const bool on_all =
          std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.contains(one.name); });
      const auto numel = on_all ? numel_of_parts(ranks, one.name) : std::nullopt;
      if (is_found[i] != 0 || numel != Box::whole(one.part.global_shape).numel()) continue;
      is_found[i] = 1;
      cut.parameters.push_back(static_cast<int>(i));
      const auto end = ranks.begin() + mesh_.group(axis.name).rank();
      const std::string mine_of = boxes_of(one.part);
      if (std::any_of(ranks.begin(), end,
                      [&](const auto& rank) { return rank.at(one.name).boxes == mine_of; }))
        cut.counted_elsewhere.push_back(static_cast<int>(i));
    }
    std::sort(cut.parameters.begin(), cut.parameters.end(),
              [&](int a, int b) { return parameters[a]->name < parameters[b]->name; });
    if (!cut.parameters.empty()) cuts.push_back(std::move(cut));
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    require(is_found[i] != 0, ErrorKind::Unsupported, parameters[i]->name,
            "Adafactor needs whole rows and columns, and the ranks along no axis have all parts of this one "
            "between them, each a part of its own or the same one",
            "use another optimizer, or cut it over one axis of the mesh");
  return cuts;
}

at::Tensor AxesAgreement::add_up(const at::Tensor& squares, std::span<const int> gathered_units,
                                 std::span<const char> used) const {
  const uint32_t gather_order = number_of(gathered_units);
  const at::Tensor own = at::zeros({uses() + common_parameters_}, at::kDouble);
  double* const mine = own.mutable_data_ptr<double>();
  mine[kOrders + 2 * dp_group_] = gather_order;
  mine[kOrders + 2 * dp_group_ + 1] = static_cast<double>(gather_order) * gather_order;
  for (size_t i = 0; i < used.size(); ++i) mine[uses() + common_number_[i]] = used[i];

  const at::Tensor sums = copied_to_device(own, mesh_.device());
  sums.narrow(0, 0, 1).copy_(squares);
  const WaitPlace place("gradient norm");
  everyone_.all_reduce(sums, Group::Reduce::Sum, "gradient norm").wait();
  return sums;
}

at::Tensor AxesAgreement::used(const at::Tensor& sums) const {
  return sums.narrow(0, uses(), common_parameters_).index_select(0, common_number_on_device_);
}

StepAgreement AxesAgreement::agreement(const at::Tensor& sums_on_host,
                                       std::span<const int> gathered_units) const {
  const auto* const all = sums_on_host.const_data_ptr<double>();
  require_same_order({all + kOrders, all + uses()}, gathered_units);
  StepAgreement agreed{.squared_norm = all[0], .used = {}};
  for (const int64_t number : common_number_) agreed.used.push_back(all[uses() + number] > 0 ? 1 : 0);
  return agreed;
}

// Equal numbers are those whose squares add up to the square of their sum, divided by how many there are.
void AxesAgreement::require_same_order(std::span<const double> sums_and_squares,
                                       std::span<const int> gathered_units) const {
  for (size_t at = 0; at < sums_and_squares.size(); at += 2) {
    const double sum = sums_and_squares[at], squares = sums_and_squares[at + 1];
    if (squares * dp_ranks_ != sum * sum) name_other_order(gathered_units);
  }
}

// The first rank that gathered another unit than the first rank of its group along "dp". All ranks call it,
// since all know by then that there is one.
void AxesAgreement::name_other_order(std::span<const int> gathered_units) const {
  std::string mine = std::to_string(dp_group_);
  for (const int unit : gathered_units) mine += "\n" + unit_names_[unit];
  const std::vector<std::string> texts = gather_text(mesh_, everyone_, mine, "order of units");
  std::map<std::string, std::pair<int, std::vector<std::string>>>
      first;  // of each group: its rank, its units
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<std::string> units = lines_of(texts[i]);  // after the group
    const int rank = everyone_.members()[i];
    const auto& [other, others] = first.try_emplace(units[0], rank, units).first->second;
    const auto at = std::mismatch(units.begin(), units.end(), others.begin(), others.end());
    const auto word = [](auto place, const auto& all) {
      return place == all.end() ? "nothing more" : *place;
    };
    require(units == others, ErrorKind::Comm, "step",
            "ranks gathered units in different orders in this step: rank " + std::to_string(rank) +
                " gathered " + word(at.first, units) + " where rank " + std::to_string(other) + " gathered " +
                word(at.second, others),
            "make all ranks run the same submodules, or gather those that differ with a GatherScope");
  }
  fail(ErrorKind::Internal, "step", "ranks disagree about orders that are the same");
}

void AxesAgreement::sum_over_ranks(std::span<double> sums) const {
  if (everyone_.size() == 1 || sums.empty()) return;
  const int64_t parameters = std::ssize(common_number_);
  const at::Tensor own = at::from_blob(sums.data(), {parameters, std::ssize(sums) / parameters}, at::kDouble);
  own.copy_(sum_over_ranks(copied_to_device(own, mesh_.device())));
}

at::Tensor AxesAgreement::sum_over_ranks(const at::Tensor& sums) const {
  if (everyone_.size() == 1 || sums.numel() == 0) return sums;
  const at::Tensor all = at::zeros({common_parameters_, sums.size(1)}, sums.options());
  all.index_copy_(0, common_number_on_device_, sums);
  const WaitPlace place("sums of parameters");
  everyone_.all_reduce(all, Group::Reduce::Sum, "sums of parameters").wait();
  return all.index_select(0, common_number_on_device_);
}

}  // namespace zero::detail
