#include "zero/recompute.h"

#include <algorithm>
#include <utility>

#include "recompute/region.h"
#include "zero/error.h"

namespace zero {

std::vector<at::Tensor> recompute(TensorsFunction fn, const std::vector<at::Tensor>& inputs,
                                  const RecomputeOptions& options) {
  require(static_cast<bool>(fn), ErrorKind::Usage, options.name, "there is no function to call");
  if (!c10::GradMode::is_enabled()) return fn(inputs);
  return std::make_shared<detail::Region>(std::move(fn), inputs, options)->run(inputs);
}

at::Tensor recompute(TensorFunction fn, const at::Tensor& input, const RecomputeOptions& options) {
  require(static_cast<bool>(fn), ErrorKind::Usage, options.name, "there is no function to call");
  if (!c10::GradMode::is_enabled()) return fn(input);
  const auto of_lists = [fn = std::move(fn)](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{fn(inputs[0])};
  };
  return recompute(of_lists, std::vector<at::Tensor>{input}, options)[0];
}

}  // namespace zero
