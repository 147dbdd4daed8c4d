// Optimizer kernels in GB/s, each in alternation with a loop of loads and stores on the same memory: the same
// ones, or where a rule passes twice those of AdamW. Counters: GB/s = what the kernel moves, stream = what
// that loop moves, of_stream = their ratio.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "median.h"
#include "optim/kernels/kernels.h"
#include "stream.h"

namespace zero::bench {
namespace {

using kernels::Buffers;
using kernels::Element;
using kernels::KernelSet;

constexpr int64_t kCount = 32 << 20;  // 20 bytes each: far beyond any cache

/// Huge pages, as the engine's slabs have.
template <class T>
struct HugePages {
  using value_type = T;
  static constexpr size_t kPage = size_t{2} << 20;
  T* allocate(size_t count) {
    const size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    void* const memory = std::aligned_alloc(kPage, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t /*count*/) { std::free(memory); }
};
template <class T>
using Values = std::vector<T, HugePages<T>>;

struct Memory {
  Values<float> master = Values<float>(kCount, 0.5F), gradient = Values<float>(kCount, 1e-3F);
  Values<float> first = Values<float>(kCount, 1e-3F), second = Values<float>(kCount, 1e-6F);
  Values<uint16_t> parameter = Values<uint16_t>(kCount);
  Values<kernels::Remainder> remainder = Values<kernels::Remainder>(kCount);
};

Memory& memory() {
  static const auto owned = std::make_unique<Memory>();
  return *owned;
}

/// Of this thread only: on a busy machine the time that others take is not the kernel's.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Runs work on equal parts of [0, kCount), a thread each; seconds of the slowest.
double split(int threads, const auto& work) {
  std::vector<double> seconds(threads);
  const int64_t part = kCount / threads;
  const auto run = [&](int i) {
    const double start = thread_seconds();
    work(i * part, (i + 1) * part);
    seconds[i] = thread_seconds() - start;
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
    run(0);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

struct Work {
  std::string name;
  int states;
  bool split;  // the master is in two halves
  void (*run)(const KernelSet& set, const Buffers& buffers, int64_t count);
  double element_bytes = 0;  // that the kernel moves; 0: the stream's
};

void run_adamw(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<AdamW>().update(buffers,
                         {.gradient_scale = 0.5F,
                          .decay = 0.9999F,
                          .beta1 = 0.9F,
                          .one_minus_beta1 = 0.1F,
                          .beta2 = 0.999F,
                          .one_minus_beta2 = 0.001F,
                          .inverse_root_correction = 1.5F,
                          .eps = 1e-8F,
                          .step_size = 1e-4F},
                         count);
}
void run_sgd(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<SGD>().update(buffers, {.gradient_scale = 0.5F, .momentum = 0.9F, .lr = 1e-4F}, count);
}
void run_lion(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<Lion>().update(buffers,
                        {.gradient_scale = 0.5F,
                         .beta1 = 0.9F,
                         .one_minus_beta1 = 0.1F,
                         .beta2 = 0.99F,
                         .one_minus_beta2 = 0.01F,
                         .lr = 1e-4F},
                        count);
}

void run_adagrad(const KernelSet& set, const Buffers& buffers, int64_t count) {
  set.of<Adagrad>().update(buffers, {.gradient_scale = 0.5F, .eps = 1e-10F, .rate = 1e-4F}, count);
}

// Both passes; sums of 256 elements, as the engine takes them.
template <class Rule>
void run_twice(const KernelSet& set, const Buffers& buffers, int64_t count,
               const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  constexpr int64_t kBlock = 256, kChunk = 16 * kBlock;
  double sums[2 * kChunk / kBlock];
  for (int64_t i = 0; i < count; i += kChunk) {
    set.of<Rule>().direction(kernels::advance(buffers, i), scalars, std::min(kChunk, count - i), kBlock,
                             sums);
    benchmark::DoNotOptimize(sums);
  }
  set.of<Rule>().update(buffers, scalars, count);
}
void run_lamb(const KernelSet& set, const Buffers& buffers, int64_t count) {
  run_twice<LAMB>(set, buffers, count,
                  {.gradient_scale = 0.5F,
                   .beta1 = 0.9F,
                   .one_minus_beta1 = 0.1F,
                   .beta2 = 0.999F,
                   .one_minus_beta2 = 0.001F,
                   .eps = 1e-6F,
                   .decay = 0.01F,
                   .lr = 1e-4F});
}
void run_lars(const KernelSet& set, const Buffers& buffers, int64_t count) {
  run_twice<LARS>(set, buffers, count, {.gradient_scale = 0.5F, .momentum = 0.9F, .lr = 1e-4F});
}

// bf16 without a master.
void run_rounded(const KernelSet& set, const Buffers& buffers, int64_t count) {
  Buffers here = buffers;
  here.remainder = nullptr;
  here.number = 0;
  here.rounding = {42};
  run_adamw(set, here, count);
}

// Four passes over a matrix of kColumns columns.
void run_adafactor(const KernelSet& set, const Buffers& buffers, int64_t count) {
  constexpr int64_t kColumns = 1024, kChunk = 4096;
  alignas(64) float made[kChunk];
  double sums[kChunk / 256];
  const int64_t rows = count / kColumns;
  std::vector<int32_t> row_bits(rows), column_bits(kColumns);
  std::vector<double> row_sums(rows), column_sums(kColumns), row_scales(rows, 0x1p40),
      column_scales(kColumns, 0x1p40);
  std::vector<float> row_factors(rows, 1.0F), column_factors(kColumns, 1.0F);
  const auto run = [&](int64_t from, int64_t numel) {
    return kernels::MatrixRun{.gradient = static_cast<const float*>(buffers.gradient) + from,
                              .scale = 0.5F,
                              .first = from,
                              .count = numel,
                              .rows = rows,
                              .cols = kColumns};
  };
  set.factored.largest(run(0, count), row_bits.data(), column_bits.data());
  set.sums_of_squares(buffers.master, Element::f32, count, 256, std::vector<double>(count / 256).data());
  set.factored.squares(run(0, count), row_scales.data(), column_scales.data(), row_sums.data(),
                       column_sums.data());
  for (const bool updates : {false, true})
    for (int64_t i = 0; i < count; i += kChunk) {
      const int64_t part = std::min(kChunk, count - i);
      set.factored.directions(run(i, part), row_factors.data(), column_factors.data(), 1e30F, made);
      if (!updates) {
        set.sums_of_squares(made, Element::f32, part, 256, sums);
        benchmark::DoNotOptimize(sums);
        continue;
      }
      Buffers here = kernels::advance(buffers, i);
      here.gradient = made;
      set.of<Adafactor>().update(here, {.gradient_scale = 1e-4F}, part);
    }
}

void measure(benchmark::State& state, const Work& work, const KernelSet& set, int threads) {
  Memory& m = memory();
  Buffers buffers{.master = m.master.data(), .gradient = m.gradient.data(), .parameter = m.parameter.data()};
  buffers.parameter_type = Element::bf16;
  if (work.split) {
    buffers.master = nullptr;
    buffers.remainder = m.remainder.data();
  }
  if (work.states > 0) buffers.first = m.first.data();
  if (work.states > 1) buffers.second = m.second.data();
  const Stream stream{buffers.master, buffers.remainder, m.gradient.data(),
                      buffers.first,  buffers.second,    m.parameter.data()};
  std::vector<double> kernel_times, stream_times;
  for (auto _ : state) {
    kernel_times.push_back(split(threads, [&](int64_t begin, int64_t end) {
      work.run(set, kernels::advance(buffers, begin), end - begin);
    }));
    state.SetIterationTime(kernel_times.back());
    stream_times.push_back(
        split(threads, [&](int64_t begin, int64_t end) { run_stream(stream, begin, end); }));
  }
  const double streamed = kCount * (4.0 + 8.0 * work.states + (work.split ? 8.0 : 10.0));
  const double bytes = work.element_bytes > 0 ? kCount * work.element_bytes : streamed;
  const double rate = bytes / median(kernel_times), stream_rate = streamed / median(stream_times);
  state.counters["GB/s"] = rate / 1e9;
  state.counters["stream"] = stream_rate / 1e9;
  state.counters["of_stream"] = rate / stream_rate;
}

void measure_norm(benchmark::State& state, const KernelSet& set) {
  const Memory& m = memory();
  constexpr int64_t kBlock = 1 << 15;
  std::vector<double> sums(kCount / kBlock);
  for (auto _ : state) {
    set.sums_of_squares(m.gradient.data(), Element::f32, kCount, kBlock, sums.data());
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(state.iterations() * kCount * 4);
}

void register_all() {
  static const Work kWorks[] = {{"AdamW_split", 2, true, run_adamw},
                                {"AdamW", 2, false, run_adamw},
                                {"SGD_momentum", 1, false, run_sgd},
                                {"SGD", 0, false, run_sgd},
                                {"Lion", 1, false, run_lion},
                                {"Adagrad", 1, false, run_adagrad},
                                // Gradient, master and states; then master, states and parameter.
                                {"LAMB", 2, false, run_lamb, 4 + 4 + 16 + 8 + 8 + 2},
                                // Gradient and master; then all.
                                {"LARS", 1, false, run_lars, 4 + 4 + 4 + 8 + 8 + 2},
                                // Gradient four times, master three times, parameter.
                                {"Adafactor", 0, false, run_adafactor, 4 * 4 + 3 * 4 + 2},
                                // Gradient, states, and the parameter both ways.
                                {"AdamW_rounded", 2, true, run_rounded, 4 + 16 + 4}};
  for (const Work& work : kWorks) {
    for (const KernelSet* set : kernels::available_kernels()) {
      for (const int threads : {1, 2}) {
        const std::string name =
            work.name + "/" + std::string(set->name) + "/threads:" + std::to_string(threads);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&work, set, threads](benchmark::State& state) { measure(state, work, *set, threads); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->Iterations(9);
      }
    }
  }
  for (const KernelSet* set : kernels::available_kernels()) {
    benchmark::RegisterBenchmark(("sums_of_squares/" + std::string(set->name)).c_str(),
                                 [set](benchmark::State& state) { measure_norm(state, *set); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(9);
  }
}

}  // namespace
}  // namespace zero::bench

int main(int argc, char** argv) {
  zero::bench::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
