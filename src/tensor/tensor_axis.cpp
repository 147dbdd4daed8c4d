#include "tensor/tensor_axis.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

namespace zero::detail {
namespace {

// Queries, keys and values, a gate and its value read one tensor; norms read their weights in between.
constexpr size_t kRecentReads = 8;

struct MappedGradient : torch::autograd::Node {
  TensorMap map;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {map(gradients[0])};
  }
};

int64_t version_of(const at::Tensor& x) { return x.is_inference() ? 0 : static_cast<int64_t>(x._version()); }

at::Tensor reduced(const Group& group, const at::Tensor& x, Group::Reduce op, const std::string& what) {
  at::Tensor result = x.clone(at::MemoryFormat::Contiguous);
  group.all_reduce(result, op, what).wait();
  return result;
}

std::vector<int64_t> with_size(const at::Tensor& x, int64_t dim, int64_t size) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[dim] = size;
  return sizes;
}

at::Tensor all_gathered(const Group& group, const at::Tensor& local, const Cut& cut) {
  const int ranks = group.size();
  const int64_t largest = largest_local_size(cut, ranks);
  at::Tensor mine = local;
  if (local.size(cut.dim) < largest) {
    mine = at::zeros(with_size(local, cut.dim, largest), local.options());
    mine.narrow(cut.dim, 0, local.size(cut.dim)).copy_(local);
  }
  mine = mine.contiguous();
  const at::Tensor all = at::empty({ranks * mine.numel()}, mine.options());
  group.all_gather(all, mine.view({-1}), cut.origin).wait();
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : all.chunk(ranks)) parts.push_back(part.view(mine.sizes()));
  return joined(parts, cut);
}

at::Tensor reduce_scattered(const Group& group, const at::Tensor& partial, const Cut& cut) {
  const Place me{group.rank(), group.size()};
  // reduce_scatter adds in fp32, which would lose of fp64.
  if (partial.scalar_type() == at::kDouble)
    return part_of(reduced(group, partial, Group::Reduce::Sum, cut.origin), cut, me).contiguous();
  const std::vector<int64_t> padded = with_size(partial, cut.dim, largest_local_size(cut, me.ranks));
  const int64_t numel = c10::multiply_integers(padded);
  const at::Tensor in = at::zeros({me.ranks * numel}, partial.options());
  for (int rank = 0; rank < me.ranks; ++rank) {
    const at::Tensor part = part_of(partial, cut, {rank, me.ranks});
    in.narrow(0, rank * numel, numel).view(padded).narrow(cut.dim, 0, part.size(cut.dim)).copy_(part);
  }
  const at::Tensor out = at::empty({numel}, partial.options().dtype(at::kFloat));
  group.reduce_scatter(out, in, /*accumulate=*/false, cut.origin).wait();
  return out.view(padded).narrow(cut.dim, 0, local_size(cut, me)).to(partial.scalar_type()).contiguous();
}

}  // namespace

at::Tensor with_gradient(const at::Tensor& x, const TensorMap& forward, TensorMap gradient) {
  at::Tensor result;
  {
    at::NoGradGuard no_grad;
    result = forward(x.detach());
    // Memory of its own, of which it may be a view that autograd would not let be written to.
    if (result.is_view() && !result.is_alias_of(x)) result = result.variable_data();
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return result;
  auto node = std::shared_ptr<MappedGradient>(new MappedGradient, torch::autograd::deleteNode);
  node->map = std::move(gradient);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::set_history(result, node);
  return result;
}

void TensorAxis::leave() {
  if (--depth_ == 0) recent_.clear();
}

template <class Make>
at::Tensor TensorAxis::read_once(const at::Tensor& x, Make make) {
  const int64_t version = version_of(x);
  for (const SharedRead& read : recent_)
    if (read.of.is_same(x) && read.version == version &&
        read.read.requires_grad() == (x.requires_grad() && at::GradMode::is_enabled()))
      return read.read;
  const at::Tensor result = make();
  if (!is_active()) return result;
  recent_.push_back({x, result, version});
  if (recent_.size() > kRecentReads) recent_.pop_front();
  return result;
}

at::Tensor TensorAxis::read_by_parts(const at::Tensor& x, const std::string& what) {
  if (!x.defined() || !at::GradMode::is_enabled() || !x.requires_grad()) return x;
  return read_once(x, [&] {
    return with_gradient(
        x, [](const at::Tensor& value) { return value.detach(); },
        [self = shared_from_this(), what](const at::Tensor& gradient) { return self->sum(gradient, what); });
  });
}

at::Tensor TensorAxis::sum(const at::Tensor& partial, const std::string& what) {
  return with_gradient(
      partial, [&](const at::Tensor& value) { return reduced(group_, value, Group::Reduce::Sum, what); },
      [self = shared_from_this(), what](const at::Tensor& gradient) {
        return self->read_by_parts(gradient, what);
      });
}

at::Tensor TensorAxis::gather(const at::Tensor& local, const Cut& cut, bool for_parts) {
  const auto make = [&] {
    return with_gradient(
        local, [&](const at::Tensor& value) { return all_gathered(group_, value, cut); },
        [self = shared_from_this(), cut, for_parts](const at::Tensor& gradient) {
          return for_parts ? self->scatter(gradient, cut)
                           : part_of(gradient, cut, self->place()).contiguous();
        });
  };
  return for_parts ? read_once(local, make) : make();
}

at::Tensor TensorAxis::scatter(const at::Tensor& partial, const Cut& cut) {
  return with_gradient(
      partial, [&](const at::Tensor& value) { return reduce_scattered(group_, value, cut); },
      [self = shared_from_this(), cut](const at::Tensor& gradient) {
        return self->gather(gradient, cut, /*for_parts=*/true);
      });
}

at::Tensor TensorAxis::maximum(const at::Tensor& x, const std::string& what) {
  at::NoGradGuard no_grad;
  return reduced(group_, x.detach(), Group::Reduce::Max, what);
}

}  // namespace zero::detail
