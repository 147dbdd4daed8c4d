// On one CUDA device: kernels have the reference's bits, streams are ordered by events, the engine's stages
// agree. Skipped by name where there is no device; what libzero_cuda.so registers is tested without one.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/cuda_plugin.h"
#include "base/plugin.h"
#include "compute/cuda_memory.h"
#include "mesh/nccl/communicator.h"
#include "mesh/ordered_sum.h"
#include "optim/fused_operators.h"
#include "support/cuda_device.h"
#include "support/device_optimizer.h"
#include "support/device_training.h"
#include "support/expect_error.h"

namespace zero {
namespace {

using namespace zero::testing;
using torch::Tensor;

// --- Without a device.

// LibTorch's CUDA half loads without a driver: registrations need none.
bool load_torch_cuda() { return dlopen(ZERO_TORCH_CUDA, RTLD_NOW | RTLD_GLOBAL) != nullptr; }

TEST(CudaPlugin, RegistersKernelsForTheOperatorsOfTheCpu) {
  if (!load_torch_cuda()) GTEST_SKIP() << "LibTorch's CUDA libraries are not there: " << dlerror();
  fused_operators::exist_for(c10::kCPU);  // defines its operators
  detail::define_sum_operators();
  for (const char* function : {kCudaOptimizerKernels, kCudaMeshKernels}) {
    const detail::PluginFunction loaded =
        detail::load_plugin(kCudaPlugin, function, detail::PluginScope::Shared);
    ASSERT_NE(loaded.function, nullptr) << loaded.problem;
    reinterpret_cast<CudaRegister*>(loaded.function)();
  }
  EXPECT_NE(detail::load_plugin(kCudaPlugin, kCudaMemoryLimit, detail::PluginScope::Shared).function,
            nullptr);
  for (const char* name :
       {"zero::rule_update", "zero::rule_direction", "zero::sums_of_squares", "zero::ordered_totals",
        "zero::rule_decide", "zero::rule_apply_sums", "zero::ordered_sum", "zero::add_ordered_sum"}) {
    // A kernel whose signature is not the schema's would have been refused when it was registered.
    const c10::OperatorHandle found = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    EXPECT_TRUE(found.hasKernelForDispatchKey(c10::DispatchKey::CPU)) << name;
    EXPECT_TRUE(found.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) << name;
  }
}

// --- On a device.

TEST_F(OnCuda, UpdatesHaveTheReferencesBits) {
  ASSERT_TRUE(fused_operators::exist_for(device));
  for (const OptimizerRule& rule :
       {OptimizerRule(AdamW{}), OptimizerRule(Adam{.weight_decay = 0.1}), OptimizerRule(Lion{}),
        OptimizerRule(SGD{.momentum = 0.9}), OptimizerRule(LAMB{})})
    for (const auto& [parameter, split] :
         {std::pair{at::kFloat, false}, {at::kBFloat16, false}, {at::kBFloat16, true}, {at::kHalf, false}})
      expect_the_cpus_updates(rule, parameter, split, device);
}

TEST_F(OnCuda, SumsOfSquaresHaveTheReferencesBits) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t numel : {int64_t{1}, kSumBlockNumel, 3 * kSumBlockNumel + 17}) {
      const Tensor values = at::randn({numel}).to(type);
      EXPECT_TRUE(at::equal(fused_operators::sums_of_squares(values.to(device)).cpu(),
                            fused_operators::sums_of_squares(values)))
          << type << " " << numel;
    }
}

TEST_F(OnCuda, SumsOverRanksHaveTheCpusBits) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const bool accumulate : {false, true}) {
      std::vector<Tensor> rows, there;
      for (int rank = 0; rank < 5; ++rank) {
        rows.push_back((at::randn({100'003}) * (1 << rank)).to(type));
        there.push_back(rows.back().to(device));
      }
      const Tensor host = at::randn({100'003}), other = host.to(device);
      detail::ordered_sum(host, rows, accumulate);
      detail::ordered_sum(other, there, accumulate);
      EXPECT_TRUE(at::equal(other.cpu(), host)) << type << " " << accumulate;
    }
}

// NCCL's own stream comes after what the current one was given, and the current one waits for it.
TEST_F(OnCuda, NcclIsOrderedByEvents) {
  const detail::nccl::Library library = detail::nccl::load_library();
  detail::nccl::Communicator alone(library, c10::make_intrusive<c10d::HashStore>(), 0, 1, device,
                                   std::chrono::seconds(60));
  const Tensor factor = at::ones({2048, 2048}, at::TensorOptions(device));
  for (int round = 0; round < 20; ++round) {
    Tensor in = at::empty({1 << 20}, at::TensorOptions(device)), out = at::empty_like(in);
    for (int i = 0; i < 5; ++i) at::mm(factor, factor);  // keeps the current stream busy
    in.fill_(round);
    const auto end = alone.run("ncclAllGather", [&](auto comm, auto stream) {
      return library.AllGather(in.const_data_ptr(), out.mutable_data_ptr(), in.nbytes(),
                               detail::nccl::Type::uint8, comm, stream);
    });
    alone.make_stream_wait(*end);
    out.add_(1);
    EXPECT_EQ(out.min().item<float>(), static_cast<float>(round) + 1);
  }
  alone.watch(detail::nccl::Communicator::Clock::now());
  EXPECT_NO_THROW(alone.check());
}

// All stages make the same updates; the CPU's values are near, not equal: products are cuBLAS's there.
TEST_F(OnCuda, StagesAgreeToTheBit) {
  const auto trained = [&](c10::Device where, int stage) {
    MeshOptions mesh;
    mesh.device = where;
    torch::manual_seed(7);
    SmallNet model = lazily([] { return SmallNet(); });
    EngineOptions options;
    options.stage = stage;
    options.gradient_clipping = 0.7;
    options.cpu_operators = false;
    Engine engine(*model, AdamW{.lr = 3e-3}, options, Mesh::join({}, mesh));
    for (int step = 0; step < 3; ++step) {
      const Batch batch = batch_of(step, 4);
      const Tensor tokens = batch.tokens.to(where), targets = batch.targets.to(where);
      engine.backward(engine.forward([&] { return model->loss(tokens, targets); }));
      EXPECT_TRUE(engine.step().stepped);
    }
    std::vector<Tensor> values;
    for (const auto& item : model->named_parameters())
      values.push_back(engine.full_parameter(item.key()).cpu().clone());
    return values;
  };
  const std::vector<Tensor> first = trained(device, 0), host = trained(c10::kCPU, 0);
  for (int stage = 1; stage < 4; ++stage) {
    const std::vector<Tensor> values = trained(device, stage);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(values[i], first[i])) << stage;
  }
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::allclose(first[i], host[i], 1e-3, 1e-4));
}

TEST_F(OnCuda, TheMemoryLimitIsKept) {
  constexpr int64_t kLimitBytes = int64_t{1} << 30;
  EXPECT_ERROR(detail::limit_cuda_memory(device, int64_t{1} << 50, "cuda.memory"), Config,
               "are more than the");
  detail::limit_cuda_memory(device, kLimitBytes, "cuda.memory");
  const at::TensorOptions bytes = at::TensorOptions(device).dtype(at::kByte);
  EXPECT_NO_THROW(at::empty({kLimitBytes / 2}, bytes));
  EXPECT_THROW(at::empty({2 * kLimitBytes}, bytes), c10::OutOfMemoryError);
}

}  // namespace
}  // namespace zero
