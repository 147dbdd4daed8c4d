// What saving in the background costs: rounds of training steps, in turn without a save and with one that
// begins before the first step. GPT-2 124M, bf16, stage 3, batch 1, sequence 256.
//
//   zero launch --ranks 2 -- saving_bench DIRECTORY [ROUNDS] [STEPS]     rank 0 prints a line of JSON
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(std::round(value * 1000) / 1000);
  return list;
}

struct Seconds {
  std::vector<double> plain, saving;  // a round
  std::vector<double> begin, open;    // of a save: until training goes on; until it is published
};

class Bench {
 public:
  Bench(const zero::Mesh& mesh, std::filesystem::path directory)
      : mesh_(mesh),
        directory_(std::move(directory)),
        shape_(zero::gpt2_shape("gpt2")),
        model_(zero::lazily([&] { return zero::Gpt2(shape_); })),
        engine_(*model_, zero::AdamW{.lr = 1e-5}, {.stage = 3, .dtype = at::kBFloat16}, mesh) {}

  void run(int rounds, int steps) {
    round(2, /*saves=*/true);  // memory of the copy, too, is taken once
    seconds_ = {};
    for (int i = 0; i < rounds; ++i) {
      seconds_.plain.push_back(round(steps, false));
      seconds_.saving.push_back(round(steps, true));
    }
  }
  const Seconds& seconds() const { return seconds_; }

 private:
  double round(int steps, bool saves) {
    mesh_.world().barrier("round");
    const auto begin = Clock::now();
    if (saves) {
      engine_.begin_save(directory_, "{}", 1);
      seconds_.begin.push_back(since(begin));
    }
    for (int i = 0; i < steps; ++i) {
      step();
      if (engine_.is_saving() && engine_.finish_save(/*wait=*/false)) seconds_.open.push_back(since(begin));
    }
    mesh_.world().barrier("round");
    const double taken = since(begin);
    // The next round is to begin with nothing under way.
    if (engine_.is_saving()) {
      engine_.finish_save();
      seconds_.open.push_back(since(begin));
    }
    return taken;
  }

  void step() {
    const at::Tensor tokens = at::randint(0, shape_.vocab_size, {1, kSequence + 1}, at::kLong);
    const at::Tensor loss = engine_.forward([&] {
      return model_->loss(tokens.narrow(1, 0, kSequence).contiguous(),
                          tokens.narrow(1, 1, kSequence).contiguous());
    });
    engine_.backward(loss);
    engine_.step();
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

void print(const zero::Mesh& mesh, const Seconds& seconds, int steps, int64_t checkpoint_bytes) {
  const double plain = median(seconds.plain), saving = median(seconds.saving);
  std::cout << Json{{"model", "gpt2"},
                    {"ranks", mesh.size()},
                    {"steps", steps},
                    {"step_s", std::round(plain / steps * 1e4) / 1e4},
                    {"checkpoint_mib", checkpoint_bytes >> 20},
                    {"plain_s", rounded(seconds.plain)},
                    {"saving_s", rounded(seconds.saving)},
                    {"begin_s", rounded(seconds.begin)},
                    {"published_after_s", rounded(seconds.open)},
                    {"stall_share", std::round((saving / plain - 1) * 1e4) / 1e4},
                    {"stall_share_fastest",
                     std::round((*std::min_element(seconds.saving.begin(), seconds.saving.end()) /
                                     *std::min_element(seconds.plain.begin(), seconds.plain.end()) -
                                 1) *
                                1e4) /
                         1e4}}
                   .dump()
            << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: zero launch --ranks 2 -- saving_bench DIRECTORY [ROUNDS] [STEPS]\n";
    return 2;
  }
  const std::filesystem::path directory = std::filesystem::path(argv[1]) / "saving-bench";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5, steps = argc > 3 ? std::atoi(argv[3]) : 20;
  try {
    const zero::Rendezvous job = zero::rendezvous_from_environment();
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    zero::prepare_compute_threads(std::max(1, cores / job.local_size));
    zero::use_training_allocator();
    const zero::Mesh mesh = zero::Mesh::join(job);
    at::manual_seed(static_cast<uint64_t>(mesh.rank()) + 1);
    Bench bench(mesh, directory);
    bench.run(rounds, steps);
    if (mesh.rank() == 0) {
      print(mesh, bench.seconds(), steps, bytes_in(directory));
      std::filesystem::remove_all(directory);
    }
  } catch (const std::exception& error) {
    std::cerr << "saving_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
