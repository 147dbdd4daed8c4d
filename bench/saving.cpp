// What saving in the background costs: in every round, the time from the beginning of a save to the end of
// the step that finds it published, over that of as many steps without a save right before and after. GPT-2
// 124M, bf16, stage 3, batch 1, sequence 256.
//
//   zero launch --ranks 2 -- saving_bench DIRECTORY [ROUNDS] [INTERVAL]     rank 0 prints a line of JSON
#include <ATen/Context.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "median.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/gpt2.h"
#include "zero/lazy.h"

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t kSequence = 256;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(std::round(value * 1000) / 1000);
  return list;
}

// A round each.
struct Seconds {
  std::vector<double> quiet;   // a step without a save, the median of those around
  std::vector<double> begin;   // of a save: until training goes on
  std::vector<double> window;  // until the end of the step that found it published
  std::vector<double> steps;   // in that time
  std::vector<double> stall;   // window - steps * quiet
};

class Bench {
 public:
  Bench(const zero::Mesh& mesh, std::filesystem::path directory)
      : mesh_(mesh),
        directory_(std::move(directory)),
        shape_(zero::gpt2_shape("gpt2")),
        model_(zero::lazily([&] { return zero::Gpt2(shape_); })),
        engine_(*model_, zero::AdamW{.lr = 1e-5}, {.stage = 3, .dtype = at::kBFloat16}, mesh) {}

  void run(int rounds) {
    round();  // memory of the copy, too, is taken once
    seconds_ = {};
    for (int i = 0; i < rounds; ++i) round();
  }
  const Seconds& seconds() const { return seconds_; }

 private:
  static constexpr int kQuietSteps = 4;  // before a save, and after it

  void round() {
    std::vector<double> quiet;
    for (int i = 0; i < kQuietSteps; ++i) quiet.push_back(step());
    const auto begin = Clock::now();
    engine_.begin_save(directory_, "{}", 1);
    seconds_.begin.push_back(since(begin));
    int steps = 0;
    do {
      step();
      ++steps;
    } while (!engine_.finish_save(/*wait=*/false));
    seconds_.window.push_back(since(begin));
    for (int i = 0; i < kQuietSteps; ++i) quiet.push_back(step());
    seconds_.steps.push_back(steps);
    seconds_.quiet.push_back(zero::bench::median(quiet));
    seconds_.stall.push_back(seconds_.window.back() - steps * seconds_.quiet.back());
  }

  double step() {
    const auto begin = Clock::now();
    const at::Tensor tokens = at::randint(0, shape_.vocab_size, {1, kSequence + 1}, at::kLong);
    const at::Tensor loss = engine_.forward([&] {
      return model_->loss(tokens.narrow(1, 0, kSequence).contiguous(),
                          tokens.narrow(1, 1, kSequence).contiguous());
    });
    engine_.backward(loss);
    engine_.step();
    return since(begin);
  }

  zero::Mesh mesh_;
  std::filesystem::path directory_;
  zero::Gpt2Shape shape_;
  zero::Gpt2 model_;
  zero::Engine engine_;
  Seconds seconds_;
};

int64_t bytes_in(const std::filesystem::path& directory) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

void print(const zero::Mesh& mesh, const Seconds& seconds, int interval, int64_t checkpoint_bytes) {
  const double step = zero::bench::median(seconds.quiet), stall = zero::bench::median(seconds.stall);
  std::cout << Json{{"model", "gpt2"},
                    {"ranks", mesh.size()},
                    {"interval_steps", interval},
                    {"checkpoint_mib", checkpoint_bytes >> 20},
                    {"step_s", rounded(seconds.quiet)},
                    {"begin_s", rounded(seconds.begin)},
                    {"window_s", rounded(seconds.window)},
                    {"window_steps", rounded(seconds.steps)},
                    {"stall_s", rounded(seconds.stall)},
                    {"stall_share", std::round(stall / (interval * step) * 1e4) / 1e4}}
                   .dump()
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: zero launch --ranks 2 -- saving_bench DIRECTORY [ROUNDS] [INTERVAL]\n";
    return 2;
  }
  const std::filesystem::path directory = std::filesystem::path(argv[1]) / "saving-bench";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11, interval = argc > 3 ? std::atoi(argv[3]) : 20;
  try {
    const zero::Rendezvous job = zero::rendezvous_from_environment();
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    zero::prepare_compute_threads(std::max(1, cores / job.local_size));
    zero::use_training_allocator();
    const zero::Mesh mesh = zero::Mesh::join(job);
    at::manual_seed(static_cast<uint64_t>(mesh.rank()) + 1);
    Bench bench(mesh, directory);
    bench.run(rounds);
    if (mesh.rank() == 0) {
      print(mesh, bench.seconds(), interval, bytes_in(directory));
      std::filesystem::remove_all(directory);
    }
  } catch (const std::exception& error) {
    std::cerr << "saving_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
