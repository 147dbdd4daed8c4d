zero_test(engine TORCH TIMEOUT 600 USES engine models operators LIBS nlohmann_json::nlohmann_json
          FILES lazy engine_parity engine_modules engine_traffic engine_checkpoint engine_save engine_any_mesh engine_golden tied_gradients fast_operators sum_memory target_gradients
                zero_redundancy_optimizer activations)
