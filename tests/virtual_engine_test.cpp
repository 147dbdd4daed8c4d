// The engine in a world of one on a virtual device.
#include <torch/nn.h>

#include "support/virtual_machine.h"
#include "zero/engine.h"
#include "zero/language_model.h"
#include "zero/lazy.h"

namespace zero::virtual_device::testing {
namespace {

class VirtualEngine : public OnVirtualDevices {
 protected:
  struct Result {
    std::vector<double> losses;
    std::vector<at::Tensor> values;
  };

  Result train(c10::Device where, const EngineOptions& options, bool is_lazy) {
    torch::manual_seed(1);
    MeshOptions mesh_options;
    mesh_options.device = where;
    const Mesh mesh = Mesh::join({}, mesh_options);
    const auto make = [] {
      return make_language_model(
          Gpt2Shape{.vocab_size = 53, .context_length = 32, .layers = 2, .width = 32, .heads = 4});
    };
    auto model = is_lazy ? lazily(make) : make();
    Engine engine(*model, AdamW{.lr = 1e-2}, options, mesh);
    const auto all = torch::arange(2 * 17).mul(7).remainder(53).view({2, 17}).to(where);
    const auto x = all.slice(1, 0, 16).contiguous(), y = all.slice(1, 1, 17).contiguous();
    Result result;
    for (int step = 0; step < 3; ++step) {
      const auto loss = engine.forward([&] {
        const auto logits = model->forward(x).flatten(0, 1);
        return torch::nll_loss(torch::log_softmax(logits, 1, torch::kFloat), y.flatten());
      });
      engine.backward(loss);
      engine.step();
      result.losses.push_back(loss.item<double>());
    }
    for (const auto& item : model->named_parameters())
      result.values.push_back(engine.full_parameter(item.key()).cpu());
    return result;
  }
};

TEST_F(VirtualEngine, TrainsAsOnACpuBitForBit) {
  for (const bool is_lazy : {false, true})
    for (int stage = 0; stage <= 3; ++stage)
      for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + (is_lazy ? ", lazy, " : ", ") + c10::toString(dtype));
        EngineOptions options{.stage = stage, .dtype = dtype};
        options.cpu_operators = false;  // those of the CPU run have another rounding
        const Result host = train(c10::kCPU, options, is_lazy), found = train(device, options, is_lazy);
        EXPECT_EQ(host.losses, found.losses);
        EXPECT_NE(host.losses.front(), host.losses.back());
        ASSERT_EQ(host.values.size(), found.values.size());
        for (size_t i = 0; i < host.values.size(); ++i)
          EXPECT_TRUE(host.values[i].equal(found.values[i])) << i;
        EXPECT_EQ(fault_texts(), std::vector<std::string>{});
      }
}

}  // namespace
}  // namespace zero::virtual_device::testing
