// Muon's Newton-Schulz iteration beside its matrix products alone, in alternation: a line of JSON a shape.
// of_products = the iteration's time over theirs, the median over rounds. On one thread, in its own time:
// what others take on a busy machine is not counted.
#include "optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "median.h"

namespace zero::bench {
namespace {

constexpr int kRounds = 11, kSteps = 5;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Work>
double timed(Work work) {
  const double began = thread_seconds();
  work();
  return thread_seconds() - began;
}

// Five times: X X^T, its square, and that times X, for X [a, b] of bf16 with a <= b.
void products(const at::Tensor& x, const at::Tensor& gram) {
  for (int step = 0; step < kSteps; ++step) {
    at::mm(x, x.t());
    at::mm(gram, gram);
    at::mm(gram, x);
  }
}

void measure(int64_t rows, int64_t cols) {
  const at::Tensor matrix = at::randn({rows, cols});
  const int64_t a = std::min(rows, cols), b = std::max(rows, cols);
  const at::Tensor x = at::randn({a, b}).to(at::kBFloat16), gram = at::randn({a, a}).to(at::kBFloat16);
  std::vector<double> whole, alone, ratios;
  for (int round = 0; round <= kRounds; ++round) {
    const double first = timed([&] { muon::orthogonalised(matrix); }),
                 second = timed([&] { products(x, gram); });
    if (round == 0) continue;  // threads and kernels are made in it
    whole.push_back(first);
    alone.push_back(second);
    ratios.push_back(first / second);
  }
  const double flops = kSteps * (4.0 * a * a * b + 2.0 * a * a * a);
  const nlohmann::json line = {{"rows", rows},
                               {"cols", cols},
                               {"ms", median(whole) * 1e3},
                               {"products_ms", median(alone) * 1e3},
                               {"gflops", flops / median(whole) / 1e9},
                               {"of_products", median(ratios)}};
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace zero::bench

int main() {
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  for (const auto& [rows, cols] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 256}, {768, 768}, {768, 2304}, {3072, 768}})
    zero::bench::measure(rows, cols);
  return 0;
}
