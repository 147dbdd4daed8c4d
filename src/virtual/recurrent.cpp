// Recurrent layers. LibTorch's composite kernels choose other operators, with other rounding, for what is not
// on a CPU; these choose as on a CPU, from operators that the device has.
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

using at::Tensor;

/// One layer in one direction. Undefined tensors where it has none.
struct RecurrentWeights {
  Tensor input, hidden, input_bias, hidden_bias, projection;

  Tensor of_input(const Tensor& x) const { return at::linear(x, input, optional(input_bias)); }
  Tensor of_hidden(const Tensor& h) const { return at::linear(h, hidden, optional(hidden_bias)); }

 private:
  static std::optional<Tensor> optional(const Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  }
};

/// What a step carries to the next; `cell` of LSTMs only.
struct HiddenState {
  Tensor hidden, cell;
};

/// `gates` [batch, gates * width] are the input's share, made for all steps at once.
using Cell = HiddenState (*)(const Tensor& gates, const HiddenState& state, const RecurrentWeights& weights);

HiddenState lstm_step(const Tensor& gates, const HiddenState& state, const RecurrentWeights& weights) {
  const std::vector<Tensor> parts = weights.of_hidden(state.hidden).add_(gates).unsafe_chunk(4, 1);
  const Tensor in = parts[0].sigmoid_(), forget = parts[1].sigmoid_();
  const Tensor candidate = parts[2].tanh_(), out = parts[3].sigmoid_();
  const Tensor cell = (forget * state.cell).add_(in * candidate);
  const Tensor hidden = out * cell.tanh();
  return {weights.projection.defined() ? at::matmul(hidden, weights.projection.t()) : hidden, cell};
}

HiddenState gru_step(const Tensor& gates, const HiddenState& state, const RecurrentWeights& weights) {
  const std::vector<Tensor> of_input = gates.unsafe_chunk(3, 1);
  const std::vector<Tensor> of_hidden = weights.of_hidden(state.hidden).unsafe_chunk(3, 1);
  const Tensor reset = of_hidden[0].add_(of_input[0]).sigmoid_();
  const Tensor update = of_hidden[1].add_(of_input[1]).sigmoid_();
  const Tensor fresh = of_input[2].add(of_hidden[2].mul_(reset)).tanh_();
  return {(state.hidden - fresh).mul_(update).add_(fresh), {}};
}

HiddenState tanh_step(const Tensor& gates, const HiddenState& state, const RecurrentWeights& weights) {
  return {at::tanh(weights.of_hidden(state.hidden).add_(gates)), {}};
}

HiddenState relu_step(const Tensor& gates, const HiddenState& state, const RecurrentWeights& weights) {
  return {at::relu(weights.of_hidden(state.hidden).add_(gates)), {}};
}

struct Stack {
  int64_t layers;
  double dropout;
  bool is_training, is_bidirectional;
  int64_t directions() const { return is_bidirectional ? 2 : 1; }
};

std::vector<RecurrentWeights> gather_weights(at::TensorList parameters, bool has_biases,
                                             bool has_projections) {
  const size_t each = 2 + (has_biases ? 2 : 0) + (has_projections ? 1 : 0);
  TORCH_CHECK(parameters.size() % each == 0, "got an incorrect number of RNN parameters");
  std::vector<RecurrentWeights> layers;
  for (size_t at = 0; at < parameters.size(); at += each) {
    RecurrentWeights weights{parameters[at], parameters[at + 1], {}, {}, {}};
    if (has_biases) {
      weights.input_bias = parameters[at + 2];
      weights.hidden_bias = parameters[at + 3];
    }
    if (has_projections) weights.projection = parameters[at + each - 1];
    layers.push_back(std::move(weights));
  }
  return layers;
}

/// x [time, batch, width], in one direction.
Tensor run_direction(Cell cell, const Tensor& x, HiddenState& state, const RecurrentWeights& weights,
                     bool is_reverse) {
  std::vector<Tensor> steps = weights.of_input(x).unbind(0), outputs;
  TORCH_CHECK(!steps.empty(), "expected a sequence longer than 0 in a recurrent layer");
  if (is_reverse) std::reverse(steps.begin(), steps.end());
  for (const Tensor& gates : steps) {
    state = cell(gates, state, weights);
    outputs.push_back(state.hidden);
  }
  if (is_reverse) std::reverse(outputs.begin(), outputs.end());
  return at::stack(outputs, 0);
}

/// Runs all layers; `direction(x, state, weights, is_reverse)` runs one and leaves its last state.
template <class Direction>
Tensor run_stack(const Stack& stack, Tensor x, std::vector<HiddenState>& states,
                 const std::vector<RecurrentWeights>& weights, Direction&& direction) {
  for (int64_t layer = 0; layer < stack.layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t way = 0; way < stack.directions(); ++way) {
      const auto index = static_cast<size_t>(layer * stack.directions() + way);
      outputs.push_back(direction(x, states.at(index), weights.at(index), way == 1));
    }
    x = outputs.size() == 1 ? outputs[0] : at::cat(outputs, outputs[0].dim() - 1);
    if (stack.dropout != 0 && stack.is_training && layer < stack.layers - 1)
      x = at::dropout(x, stack.dropout, /*train=*/true);
  }
  return x;
}

std::vector<HiddenState> states_of(const Tensor& hidden, const Tensor& cell) {
  std::vector<HiddenState> states;
  const std::vector<Tensor> hiddens = hidden.unbind(0), cells = cell.defined() ? cell.unbind(0) : hiddens;
  for (size_t i = 0; i < hiddens.size(); ++i)
    states.push_back({hiddens[i], cell.defined() ? cells[i] : Tensor()});
  return states;
}

Tensor stacked(const std::vector<HiddenState>& states, Tensor HiddenState::*part) {
  std::vector<Tensor> tensors;
  for (const HiddenState& state : states) tensors.push_back(state.*part);
  return at::stack(tensors, 0);
}

template <Cell cell>
std::tuple<Tensor, Tensor> recurrent(const Tensor& input, const Tensor& hidden, at::TensorList parameters,
                                     bool has_biases, int64_t layers, double dropout, bool is_training,
                                     bool is_bidirectional, bool is_batch_first) {
  const Stack stack{layers, dropout, is_training, is_bidirectional};
  std::vector<HiddenState> states = states_of(hidden, {});
  Tensor output =
      run_stack(stack, is_batch_first ? input.transpose(0, 1) : input, states,
                gather_weights(parameters, has_biases, false),
                [](const Tensor& x, HiddenState& state, const RecurrentWeights& weights, bool is_reverse) {
                  return run_direction(cell, x, state, weights, is_reverse);
                });
  if (is_batch_first) output.transpose_(0, 1);
  return {output, stacked(states, &HiddenState::hidden)};
}

/// Whether a CPU would have oneDNN compute the layer.
bool is_for_onednn(const Tensor& input, bool has_projections) {
  const bool has_type = input.scalar_type() == at::kFloat || input.scalar_type() == at::kBFloat16;
  return at::hasMKLDNN() && at::globalContext().userEnabledMkldnn() && has_type && input.numel() > 0 &&
         !has_projections;
}

Tensor run_onednn_direction(const Stack& stack, const Tensor& x, HiddenState& state,
                            const RecurrentWeights& weights, bool is_reverse) {
  constexpr int64_t kLstmMode = 2;
  const bool has_biases = weights.input_bias.defined();
  const auto bias = [&](const Tensor& own) {
    return has_biases ? own : at::zeros({weights.input.size(0)}, weights.input.options());
  };
  auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(
      x, weights.input, weights.hidden, bias(weights.input_bias), bias(weights.hidden_bias), state.hidden,
      state.cell, is_reverse, /*batch_sizes=*/{}, kLstmMode, state.hidden.size(-1), stack.layers, has_biases,
      stack.is_bidirectional, /*batch_first=*/false, stack.is_training);
  state = {hidden, cell};
  return output;
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input, at::TensorList hidden, at::TensorList parameters,
                                        bool has_biases, int64_t layers, double dropout, bool is_training,
                                        bool is_bidirectional, bool is_batch_first) {
  TORCH_CHECK(hidden.size() == 2, "lstm expects two hidden states");
  const Stack stack{layers, dropout, is_training, is_bidirectional};
  const bool has_projections = hidden[0].size(2) != hidden[1].size(2);
  const auto weights = gather_weights(parameters, has_biases, has_projections);
  const Tensor x = is_batch_first ? input.transpose(0, 1) : input;
  Tensor output;
  std::vector<HiddenState> states;
  if (is_for_onednn(input, has_projections)) {
    states = states_of(hidden[0].contiguous(), hidden[1].contiguous());
    output =
        run_stack(stack, x.contiguous(), states, weights,
                  [&](const Tensor& at, HiddenState& state, const RecurrentWeights& own, bool is_reverse) {
                    return run_onednn_direction(stack, at, state, own, is_reverse);
                  });
  } else {
    states = states_of(hidden[0], hidden[1]);
    output = run_stack(stack, x, states, weights,
                       [](const Tensor& at, HiddenState& state, const RecurrentWeights& own,
                          bool is_reverse) { return run_direction(lstm_step, at, state, own, is_reverse); });
  }
  if (is_batch_first) output = output.transpose(0, 1);
  return {output, stacked(states, &HiddenState::hidden), stacked(states, &HiddenState::cell)};
}

RecurrentWeights cell_weights(const Tensor& input, const Tensor& hidden,
                              const std::optional<Tensor>& input_bias,
                              const std::optional<Tensor>& hidden_bias) {
  return {input, hidden, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor()), {}};
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor& x, at::TensorList hidden, const Tensor& input_weight,
                                     const Tensor& hidden_weight, const std::optional<Tensor>& input_bias,
                                     const std::optional<Tensor>& hidden_bias) {
  TORCH_CHECK(hidden.size() == 2, "lstm_cell expects two hidden states");
  const RecurrentWeights weights = cell_weights(input_weight, hidden_weight, input_bias, hidden_bias);
  const HiddenState state = lstm_step(weights.of_input(x), {hidden[0], hidden[1]}, weights);
  return {state.hidden, state.cell};
}

Tensor gru_cell(const Tensor& x, const Tensor& hidden, const Tensor& input_weight,
                const Tensor& hidden_weight, const std::optional<Tensor>& input_bias,
                const std::optional<Tensor>& hidden_bias) {
  const RecurrentWeights weights = cell_weights(input_weight, hidden_weight, input_bias, hidden_bias);
  return gru_step(weights.of_input(x), {hidden, {}}, weights).hidden;
}

}  // namespace

void register_recurrent_kernels() {
  using torch::Library;
  static Library autograd(Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  static Library device(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (Library* library : {&autograd, &device}) {
    library->impl("lstm.input", &lstm);
    library->impl("gru.input", &recurrent<gru_step>);
    library->impl("rnn_tanh.input", &recurrent<tanh_step>);
    library->impl("rnn_relu.input", &recurrent<relu_step>);
    library->impl("lstm_cell", &lstm_cell);
    library->impl("gru_cell", &gru_cell);
  }
}

}  // namespace zero::virtual_device
