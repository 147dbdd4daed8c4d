#include "tensor/call.h"

#include <utility>

#include "seam/stack_tensors.h"
#include "zero/error.h"

namespace zero::detail {

Call::Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
    : op_(op),
      stack_(stack),
      count_(op.schema().arguments().size()),
      base_(stack.size() - op.schema().arguments().size()) {
  for (size_t i = 0; i < count_; ++i)
    for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
      const std::shared_ptr<TensorAxis> axis = axis_of(tensor);
      if (!axis) return;
      require(!axis_ || axis_ == axis, ErrorKind::Usage, name(),
              "it reads tensors of two tensor-parallel modules",
              "make them parallel by one call, as children of one module");
      axis_ = axis;
    });
}

int Call::index(std::string_view name) const {
  const auto found = op_.schema().argumentIndexWithName(name);
  return found ? *found : -1;
}

bool Call::writes(size_t i) const {
  const c10::AliasInfo* alias = op_.schema().arguments()[i].alias_info();
  return alias != nullptr && alias->isWrite();
}

int64_t Call::dim(std::string_view name, int64_t dims) const {
  const int64_t given = argument(name).toInt();
  return given < 0 ? given + dims : given;
}

std::vector<int64_t> Call::sizes_seen(size_t i) const {
  std::vector<int64_t> sizes = argument(i).toTensor().sizes().vec();
  const Value seen = value(i);
  if (seen.cut) sizes[seen.cut.dim] = seen.cut.global_size();  // a parameter says what the rank holds
  return sizes;
}

Value Call::value(size_t i) const {
  return argument(i).isTensor() ? value_of(argument(i).toTensor()) : Value{};
}

at::Tensor Call::read_by_parts(const at::Tensor& whole) const { return axis_->read_by_parts(whole, name()); }

at::Tensor Call::part(const at::Tensor& whole, int64_t dim, const Cut& like) const {
  return part_of(read_by_parts(whole), {dim, like.blocks, like.origin}, place());
}

at::Tensor Call::gathered(const Value& value, bool for_parts) const {
  return value.cut ? axis_->gather(value.tensor, value.cut, for_parts) : value.tensor;
}

Value Call::summed(const at::Tensor& partial, const std::string& origin) const {
  // Of fewer positions than ranks (a token that is generated) some would hold nothing.
  if (!axis_->sequence() || partial.dim() != 3 || partial.size(1) < place().ranks)
    return {axis_->sum(partial, origin), {}, axis_};
  const Cut cut{1, {partial.size(1)}, origin};
  return {axis_->scatter(partial, cut), cut, axis_};
}

void Call::no_rule(const Cut& cut, const std::string& why) const {
  throw NoRule(why + " dim " + std::to_string(cut.dim) + " of what " + std::to_string(place().ranks) +
               " ranks hold parts of" + (cut.origin.empty() ? "" : " (from " + cut.origin + ")"));
}

void Call::finish_with(c10::IValue result) const {
  stack_.resize(base_);
  stack_.push_back(std::move(result));
}

void Call::run(const Cut& cut) const {
  op_.callBoxed(&stack_);
  for (size_t i = base_; i < stack_.size(); ++i)
    stack_[i] = with_tensors(stack_[i], [&](const at::Tensor& tensor) {
      return tensor.defined() ? wrapped(tensor, cut, axis_) : tensor;
    });
}

}  // namespace zero::detail
