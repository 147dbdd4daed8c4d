// What it costs that the engine sees every operator: a small operator with and without the fallback, in turn,
// times the operators of a step of GPT-2 124M, as a share of that step's forward and backward. Counters:
// plain_ns, seen_ns = one operator; operators = of a step; share = their difference over the whole step.
#include "seam/dispatch.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "median.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/gpt2.h"
#include "zero/gpt2_shape.h"

namespace zero::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(const auto& body) {
  const auto began = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::atomic<int64_t> operators{0};

struct Step {
  int64_t operators;
  double seconds;
};

/// Operators (of the dispatcher, forward and backward) and time of one step's forward and backward.
Step measure_step() {
  at::manual_seed(1);
  Gpt2 model(gpt2_shape("gpt2"));
  model->to(at::kBFloat16);
  const at::Tensor tokens = at::randint(50257, {1, 256}, at::kLong);
  const auto once = [&] {
    torch::autograd::backward({model->loss(tokens, tokens)}, {});
    model->zero_grad(true);
  };
  once();
  std::vector<double> times;
  for (int i = 0; i < 3; ++i) times.push_back(seconds(once));
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++operators;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  operators = 0;
  once();
  at::removeCallback(handle);
  return {operators.load(), median(times)};
}

void fallback(benchmark::State& state) {
  constexpr int kOperators = 100'000;
  const at::Tensor a = at::ones({1}), b = at::ones({1});
  at::Tensor out = at::ones({1});
  static const Step step = measure_step();
  const at::NoGradGuard no_grad;
  const auto many = [&] {
    for (int i = 0; i < kOperators; ++i) at::add_out(out, a, b);
  };
  std::vector<double> plain, seen;
  for (auto _ : state) {
    plain.push_back(seconds(many) / kOperators * 1e9);
    const detail::InterceptOperators intercept(nullptr, &detail::run_cpu_operator);  // as the engine does
    seen.push_back(seconds(many) / kOperators * 1e9);
    state.SetIterationTime(seen.back() / 1e9);
  }
  state.counters["plain_ns"] = median(plain);
  state.counters["seen_ns"] = median(seen);
  state.counters["operators"] = static_cast<double>(step.operators);
  state.counters["step_ms"] = step.seconds * 1e3;
  state.counters["share"] =
      static_cast<double>(step.operators) * (median(seen) - median(plain)) / 1e9 / step.seconds;
}

BENCHMARK(fallback)->UseManualTime()->Iterations(9)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) {
  zero::use_training_allocator();
  zero::prepare_compute_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
