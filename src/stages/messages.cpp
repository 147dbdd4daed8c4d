#include "stages/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "compute/wait_place.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// Of a tensor: whether it is there, whether it needs a gradient, its type, its dimensions, their sizes; the
// dim in which it is cut (-1: none), the number of blocks there, their sizes and parts.
constexpr int kSizesAt = 4, kCutAt = kSizesAt + Messages::kMostDims;
constexpr int kFields = kCutAt + 2 + 2 * Messages::kMostBlocks;
constexpr int kHeaderNumel = 1 + Messages::kMostTensors * kFields;

std::string text_of(const MessageName& name) {
  const char* kinds[] = {"activations", "gradients", "tied gradients", "sums of tied gradients", "result"};
  return std::string(kinds[static_cast<int>(name.kind)]) + " of stage " + std::to_string(name.stage) +
         ", micro-batch " + std::to_string(name.micro_batch);
}

void check(const std::vector<HeldTensor>& tensors, const MessageName& name) {
  require(
      tensors.size() <= Messages::kMostTensors, ErrorKind::Unsupported, text_of(name),
      std::to_string(tensors.size()) + " tensors, expected at most " + std::to_string(Messages::kMostTensors),
      "cut the model where fewer tensors cross");
  for (const auto& [tensor, cut] : tensors) {
    if (!tensor.defined()) continue;
    require(tensor.dim() <= Messages::kMostDims, ErrorKind::Unsupported, text_of(name),
            "a tensor of " + std::to_string(tensor.dim()) + " dimensions, expected at most " +
                std::to_string(Messages::kMostDims),
            "flatten some of them");
    require(tensor.layout() == at::kStrided && !tensor.is_quantized(), ErrorKind::Unsupported, text_of(name),
            "only dense tensors go from stage to stage");
    require(std::ssize(cut.blocks) <= Messages::kMostBlocks, ErrorKind::Unsupported, text_of(name),
            "an activation cut in " + std::to_string(cut.blocks.size()) + " blocks, expected at most " +
                std::to_string(Messages::kMostBlocks),
            "cut the model where it is not");
  }
}

at::Tensor header_of(const std::vector<HeldTensor>& tensors) {
  at::Tensor header = at::zeros({kHeaderNumel}, at::kLong);
  auto* at = header.mutable_data_ptr<int64_t>();
  *at++ = std::ssize(tensors);
  for (const auto& [tensor, cut] : tensors) {
    if (tensor.defined()) {
      at[0] = 1;
      at[1] = tensor.requires_grad();
      at[2] = static_cast<int64_t>(tensor.scalar_type());
      at[3] = tensor.dim();
      std::copy(tensor.sizes().begin(), tensor.sizes().end(), at + kSizesAt);
      at[kCutAt] = cut.dim;
      at[kCutAt + 1] = std::ssize(cut.blocks);
      int64_t* blocks = at + kCutAt + 2;
      for (const Block& block : cut.blocks) {
        *blocks++ = block.size;
        *blocks++ = block.parts;
      }
    }
    at += kFields;
  }
  return header;
}

}  // namespace

Messages::Messages(Group pipeline, at::Device device, int stages, int micro_batches)
    : pipeline_(std::move(pipeline)), device_(device), stages_(stages), micro_batches_(micro_batches) {}

// Sizes and contents have tags of their own: contents may look like sizes.
int Messages::tag_of(const MessageName& name) const {
  return 2 * ((static_cast<int>(name.kind) * stages_ + name.stage) * micro_batches_ + name.micro_batch);
}

void Messages::send(const std::vector<HeldTensor>& tensors, int to, const MessageName& name, int taken_at) {
  check(tensors, name);
  const std::string text = text_of(name);
  const int tag = tag_of(name);
  Sent& sent = sent_.emplace_back(Sent{.to = to, .taken_at = taken_at, .works = {}, .tensors = {}});
  const auto post = [&](const at::Tensor& tensor, int its_tag) {
    sent.tensors.push_back(tensor);
    sent.works.push_back(pipeline_.send(tensor, to, its_tag, text));
  };
  post(header_of(tensors).to(device_), tag);
  for (const auto& [tensor, cut] : tensors)
    if (tensor.defined() && tensor.numel() > 0) post(tensor.detach().contiguous(), tag + 1);
}

std::vector<HeldTensor> Messages::receive(int from, const MessageName& name, int made_at) {
  const std::string text = text_of(name);
  const int tag = tag_of(name);
  const WaitPlace place("pipeline's neighbour");
  at::Tensor header = at::empty({kHeaderNumel}, at::TensorOptions(device_).dtype(at::kLong));
  pipeline_.receive(header, from, tag, text).wait();
  header = header.cpu();
  const auto* at = header.const_data_ptr<int64_t>();
  std::vector<HeldTensor> tensors(static_cast<size_t>(*at++));
  std::vector<Work> works;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t* field = at + static_cast<int64_t>(i) * kFields;
    if (field[0] == 0) continue;
    const at::IntArrayRef sizes(field + kSizesAt, static_cast<size_t>(field[3]));
    auto& [tensor, cut] = tensors[i];
    tensor = at::empty(sizes, at::TensorOptions(device_).dtype(static_cast<at::ScalarType>(field[2])));
    const int64_t* blocks = field + kCutAt + 2;
    cut = {.dim = field[kCutAt], .blocks = {}, .origin = text};
    for (int64_t block = 0; block < field[kCutAt + 1]; ++block)
      cut.blocks.emplace_back(blocks[2 * block], blocks[2 * block + 1]);
    if (tensor.numel() > 0) works.push_back(pipeline_.receive(tensor, from, tag + 1, text));
  }
  for (Work& work : works) work.wait();
  let_go(from, made_at);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].tensor.defined() && at[static_cast<int64_t>(i) * kFields + 1] != 0)
      tensors[i].tensor.requires_grad_();
  return tensors;
}

// The receiver has been through those actions, so nothing waits here.
void Messages::let_go(int to, int before) {
  std::erase_if(sent_, [&](Sent& sent) {
    if (sent.to != to || sent.taken_at >= before) return false;
    for (Work& work : sent.works) work.wait();
    return true;
  });
}

void Messages::finish() {
  for (Sent& sent : sent_)
    for (Work& work : sent.works) work.wait();
  sent_.clear();
}

}  // namespace zero::detail
