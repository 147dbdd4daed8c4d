#include "train/mapped_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <vector>

#include "saving/frozen.h"
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

std::shared_ptr<LanguageModel> lazy_inference_model(const Config& config) {
  std::shared_ptr<LanguageModel> model = lazily([&] {
    auto built = make_language_model(shape_of(config));
    add_adapters(*built, config.lora);
    return built;
  });
  for (auto& parameter : model->named_parameters()) parameter.value().set_requires_grad(false);
  model->eval();
  return model;
}

std::shared_ptr<LanguageModel> mapped_model(const SavedModel& saved, at::ScalarType dtype, bool may_copy,
                                            const CheckShare& share) {
  const at::NoGradGuard no_grad;
  const SavedValues values = values_of(saved);
  const std::shared_ptr<LanguageModel> model = lazy_inference_model(saved.config);
  const auto parameters = model->named_parameters();
  std::vector<at::Tensor> mapped;
  for (const auto& item : parameters) {
    mapped.push_back(values.values->mapped(item.key(), dtype));
    if (!mapped.back().defined() && !may_copy) return nullptr;
  }
  const bool none = std::none_of(mapped.begin(), mapped.end(), [](const auto& one) { return one.defined(); });
  if (none && !saved.hugging_face) return nullptr;
  for (size_t i = 0; i < mapped.size(); ++i) {
    const std::string& name = parameters[i].key();
    at::Tensor parameter = parameters[i].value();
    parameter.set_data(mapped[i].defined() ? mapped[i] : at::empty(parameter.sizes(), dtype));
    if (!mapped[i].defined()) read_parameter(*values.values, name, parameter);
    if (static_cast<int64_t>(i) % share.count != share.number) continue;
    if (values.left_out.contains(name))
      values.require_same(saved, name, detail::frozen_fingerprint(parameter));
    else if (mapped[i].defined())
      values.check(name);
  }
  return model;
}

}  // namespace zero::training
