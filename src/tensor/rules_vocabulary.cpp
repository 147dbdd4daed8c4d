// Embeddings and losses over a vocabulary that is cut.

#include <ATen/autocast_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>

#include "tensor/rules.h"
#include "tensor/vocabulary_loss.h"

namespace zero::detail::rules {

void embedding(Call& call) {
  const Value weight = call.value(0), ids = call.value(1);
  if (!weight.cut || ids.cut) call.no_rule(ids.cut ? ids.cut : weight.cut, "its indices are parts by");
  int64_t padding = call.argument("padding_idx").toInt();
  const bool scales = call.argument("scale_grad_by_freq").toBool(), sparse = call.argument("sparse").toBool();
  if (scales || sparse) call.no_rule(weight.cut, "with sparse or scaled gradients it reads");
  if (weight.cut.dim == 1)
    return call.finish(Value{at::embedding(weight.tensor, ids.tensor, padding),
                             {ids.tensor.dim(), weight.cut.blocks, weight.cut.origin},
                             call.axis()});
  if (weight.cut.blocks.size() != 1) call.no_rule(weight.cut, "it reads several blocks of");
  const int64_t begin = part_begin(weight.cut.blocks.front(), call.place()), rows = weight.tensor.size(0);
  padding = padding >= begin && padding < begin + rows ? padding - begin : -1;
  const at::Tensor others = (ids.tensor < begin).logical_or(ids.tensor >= begin + rows);
  const at::Tensor own = at::embedding(weight.tensor, (ids.tensor - begin).masked_fill(others, 0), padding);
  call.finish(call.summed(own.masked_fill(others.unsqueeze(-1), 0), weight.cut.origin));
}

void cross_entropy(Call& call) {
  Value logits = call.value(0), targets = call.value(1);
  const Cut cut = logits.cut ? logits.cut : targets.cut;
  if (call.value(2).tensor.defined()) call.no_rule(cut, "with weights of classes it reads");
  // Losses are autocast's in fp32.
  if (logits.cut && at::autocast::is_autocast_enabled(logits.tensor.device().type()))
    logits.tensor = logits.tensor.to(at::kFloat);
  if (logits.cut && logits.cut.dim == 1 && logits.cut.blocks.size() == 1 && logits.tensor.dim() == 2 &&
      !targets.cut && targets.tensor.dim() == 1 && targets.tensor.scalar_type() == at::kLong)
    return call.finish_with(vocabulary_loss(logits.tensor, logits.cut, targets.tensor,
                                            {.reduction = call.argument("reduction").toInt(),
                                             .ignore_index = call.argument("ignore_index").toInt(),
                                             .label_smoothing = call.argument("label_smoothing").toDouble()},
                                            *call.axis()));
  call.no_rule(cut, "it is no loss of rows over");
}

}  // namespace zero::detail::rules
