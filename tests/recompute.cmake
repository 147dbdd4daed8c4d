zero_test(recompute TORCH USES recompute mesh seam compute tiers base FILES recompute chain_plan block_chain activation_store)
zero_test(engine_recompute TORCH RANKS 3 USES engine models recompute base FILES engine_recompute)
zero_test(virtual_recompute TORCH USES virtual engine models recompute mesh compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_recompute)
