#include "optim/shards.h"

#include <algorithm>
#include <cmath>

#include "optim/rule_buffers.h"
#include "optim/split_master.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

void check_tensor(const at::Tensor& tensor, std::string_view kind, const at::Tensor& master,
                  const std::string& place) {
  const std::string name(kind);
  require(tensor.defined(), ErrorKind::Usage, place, name + " is undefined");
  require(tensor.dim() == 1 && tensor.is_contiguous(), ErrorKind::Usage, place,
          name + " is not 1-D and contiguous");
  require(tensor.numel() == master.numel(), ErrorKind::Usage, place,
          name + " has " + std::to_string(tensor.numel()) + " elements, master has " +
              std::to_string(master.numel()));
  // Beside a device the host may keep either.
  const bool fits = tensor.device() == master.device() || tensor.is_cpu() || master.is_cpu();
  require(fits, ErrorKind::Usage, place,
          name + " is on " + tensor.device().str() + ", master on " + master.device().str());
}

void check_master(const at::Tensor& master, const at::Tensor& parameter, const std::string& place) {
  require(master.defined(), ErrorKind::Usage, place, "master is undefined");
  if (is_remainder(master)) {
    require(parameter.defined() && parameter.scalar_type() == at::kBFloat16, ErrorKind::Usage, place,
            "master is an int16 remainder and parameter is not bf16");
  } else if (master.scalar_type() == at::kBFloat16) {
    require(parameter.defined() && parameter.const_data_ptr() == master.const_data_ptr(), ErrorKind::Usage,
            place, "master is bf16 and not the parameter itself");
  } else {
    require(master.scalar_type() == at::kFloat, ErrorKind::Usage, place,
            "master is neither an fp32 tensor, nor an int16 remainder, nor a bf16 parameter");
  }
  check_tensor(master, kMasterState, master, place);
}

void check_segment(const ShardSegment& segment, int64_t after, int64_t numel, int parameters,
                   const std::string& place) {
  const auto range = [&] {
    return "[" + std::to_string(segment.begin) + ", " + std::to_string(segment.end) + ")";
  };
  require(segment.begin >= after && segment.end >= segment.begin && segment.end <= numel, ErrorKind::Usage,
          place,
          "segment of " + segment.name + " is " + range() + ", expected ascending, disjoint and within " +
              std::to_string(numel) + " elements");
  require(segment.begin <= segment.counted_begin && segment.counted_begin <= segment.counted_end &&
              segment.counted_end <= segment.end,
          ErrorKind::Usage, place,
          "segment of " + segment.name + " is " + range() + ", but elements [" +
              std::to_string(segment.counted_begin) + ", " + std::to_string(segment.counted_end) +
              ") are counted");
  require(segment.parameter >= 0 && segment.parameter < parameters, ErrorKind::Usage, place,
          segment.name + " is parameter " + std::to_string(segment.parameter) + " of " +
              std::to_string(parameters));
}

}  // namespace

kernels::Element element_of(at::ScalarType type) {
  const std::optional<kernels::Element> element = known_element_of(type);
  if (element) return *element;
  fail(ErrorKind::Unsupported, "optimizer",
       std::string("no update for elements of type ") + c10::toString(type), "use fp32, bf16 or fp16");
}

void check_shard(StateStore& states, const OptimizerShard& shard, size_t index, int parameters) {
  const std::string place = "optimizer shard " + std::to_string(index);
  const auto lease =
      states.lend(shard.unit, {kMasterState, kGradientState, kParameterState}, StateStore::Use::Shape);
  const at::Tensor& master = lease[kMasterState];
  check_master(master, lease[kParameterState], place);
  for (const std::string_view kind : {kGradientState, kParameterState}) {
    if (kind == kParameterState && !lease[kind].defined()) continue;
    check_tensor(lease[kind], kind, master, place);
    element_of(lease[kind].scalar_type());
  }
  int64_t after = 0;
  for (const auto& segment : shard.segments) {
    check_segment(segment, after, master.numel(), parameters, place);
    after = segment.end;
  }
}

void check_step(const StepInput& input, size_t parameters) {
  const auto place = "ShardOptimizer::step";
  require(std::isfinite(input.gradient_scale), ErrorKind::Usage, place,
          "gradient_scale is " + to_text(input.gradient_scale) + ", expected a finite number");
  require(is_finite_non_negative(input.lr), ErrorKind::Usage, place,
          "lr is " + to_text(input.lr) + ", expected " + std::string(kFiniteNonNegative));
  require(input.used.size() == parameters || input.on_device != nullptr, ErrorKind::Usage, place,
          "used has " + std::to_string(input.used.size()) + " entries for " + std::to_string(parameters) +
              " parameters");
  if (!input.betas) return;
  for (const double beta : {input.betas->beta1, input.betas->beta2}) {
    require(is_beta(beta), ErrorKind::Usage, place,
            "betas hold " + to_text(beta) + ", expected " + std::string(kBetaRange));
  }
}

bool keeps_no_copy(const StateStore::Lease& shard) {
  const at::Tensor &parameter = shard[kParameterState], &master = shard[kMasterState];
  return !parameter.defined() || (parameter.scalar_type() == master.scalar_type() &&
                                  parameter.const_data_ptr() == master.const_data_ptr());
}

ShardSegment part_in(const StatePiece& piece, const ShardSegment& segment) {
  const auto inside = [&](int64_t at) { return std::clamp(at, piece.begin, piece.end) - piece.begin; };
  ShardSegment part = segment;
  part.begin = inside(segment.begin);
  part.end = inside(segment.end);
  part.counted_begin = inside(segment.counted_begin);
  part.counted_end = inside(segment.counted_end);
  part.summed_begin = inside(segment.summed_begin);
  part.summed_end = inside(segment.summed_end);
  part.parameter_begin += std::max<int64_t>(0, piece.begin - segment.begin);
  return part;
}

}  // namespace zero
