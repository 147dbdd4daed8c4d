#pragma once
// A walk over an autograd graph before its backward.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <vector>

namespace zero::detail {

/// Calls visit(node) once for each operator that the gradient of `outputs` passes, leaves' ends included.
template <class Visit>
void for_each_node(const std::vector<at::Tensor>& outputs, Visit visit) {
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto meet = [&](const torch::autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
  };
  for (const at::Tensor& output : outputs) meet(torch::autograd::impl::gradient_edge(output));
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    visit(*node);
    for (const torch::autograd::Edge& edge : node->next_edges()) meet(edge);
  }
}

}  // namespace zero::detail
