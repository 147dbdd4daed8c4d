#include "compute/operator_flops.h"

#include <algorithm>
#include <unordered_map>

namespace zero {
namespace {

double elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

}  // namespace

FlopsRule flops_rule(const std::string& name) {
  static const std::unordered_map<std::string, FlopsRule> kRules{
      {"aten::mm", FlopsRule::Product},
      {"aten::bmm", FlopsRule::Product},
      {"aten::addmm", FlopsRule::AddedProduct},
      {"aten::addmm_", FlopsRule::AddedProduct},
      {"aten::baddbmm", FlopsRule::AddedProduct},
      {"aten::baddbmm_", FlopsRule::AddedProduct},
      {"aten::_addmm_activation", FlopsRule::AddedProduct},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", FlopsRule::Attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", FlopsRule::AttentionBackward},
      {"aten::convolution", FlopsRule::Convolution},
      {"aten::convolution_overrideable", FlopsRule::Convolution},
      {"aten::convolution_backward", FlopsRule::ConvolutionBackward},
      {"aten::mkldnn_rnn_layer", FlopsRule::RecurrentLayer}};
  const auto found = kRules.find(name);
  return found != kRules.end() ? found->second : FlopsRule::None;
}

double flops_of(FlopsRule rule, std::span<const at::Tensor> operands, const at::Tensor& result) {
  const auto product = [&](size_t a, size_t b) {
    return operands.size() > b ? 2 * elements(operands[a]) * static_cast<double>(operands[b].size(-1)) : 0;
  };
  const auto attention = [&](size_t query) {
    return operands.size() > query + 1
               ? 4 * elements(operands[query]) * static_cast<double>(operands[query + 1].size(-2))
               : 0;
  };
  // Each element of the output has a product with one filter.
  const auto convolution = [&](const at::Tensor& output, const at::Tensor& weight) {
    return 2 * elements(output) * elements(weight) /
           static_cast<double>(std::max<int64_t>(weight.size(0), 1));
  };
  switch (rule) {
    case FlopsRule::None:
      return 0;
    case FlopsRule::Product:
      return product(0, 1);
    case FlopsRule::AddedProduct:
      return product(1, 2);
    case FlopsRule::Attention:
      return attention(0);
    case FlopsRule::AttentionBackward:
      return 2.5 * attention(1);
    case FlopsRule::Convolution:
      return operands.size() > 1 ? convolution(result, operands[1]) : 0;
    case FlopsRule::ConvolutionBackward:
      return operands.size() > 2 ? 2 * convolution(operands[0], operands[2]) : 0;
    case FlopsRule::RecurrentLayer: {
      if (operands.size() < 3) return 0;
      const double steps = elements(operands[0]) / static_cast<double>(operands[0].size(-1));
      return 2 * steps * (elements(operands[1]) + elements(operands[2]));
    }
  }
  return 0;
}

}  // namespace zero
