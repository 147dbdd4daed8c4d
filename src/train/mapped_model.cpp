#include "train/mapped_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "zero/lazy.h"
#include "zero/model_shape.h"

namespace zero::training {

void read_parameter(const InitialValues& values, const std::string& name, const at::Tensor& parameter) {
  constexpr int64_t kPieceNumel = 1 << 20;
  const at::Tensor flat = parameter.view({-1});
  const BoxRange whole = BoxRange::whole(parameter.sizes());
  if (flat.scalar_type() == at::kFloat) return values.read(name, whole, flat);
  const at::Tensor buffer = at::empty({std::min(kPieceNumel, flat.numel())}, at::kFloat);
  for (int64_t begin = 0; begin < flat.numel(); begin += kPieceNumel) {
    const at::Tensor piece = buffer.narrow(0, 0, std::min(kPieceNumel, flat.numel() - begin));
    values.read(name, whole.part(begin, piece.numel()), piece);
    flat.narrow(0, begin, piece.numel()).copy_(piece);
  }
}

std::shared_ptr<LanguageModel> mapped_model(const SavedModel& saved, at::ScalarType dtype, bool may_copy) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<LanguageModel> model =
      lazily([&] { return make_language_model(shape_of(saved.config)); });
  const SavedValues values = values_of(saved);
  for (auto& item : model->named_parameters()) {
    at::Tensor parameter = item.value().set_requires_grad(false);
    const at::Tensor mapped = values.values->mapped(item.key(), dtype);
    if (!mapped.defined() && !may_copy) return nullptr;
    parameter.set_data(mapped.defined() ? mapped : at::empty(parameter.sizes(), dtype));
    if (!mapped.defined()) read_parameter(*values.values, item.key(), parameter);
  }
  model->eval();
  return model;
}

}  // namespace zero::training
