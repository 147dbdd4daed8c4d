zero_test(recompute TORCH USES recompute seam base FILES recompute chain_plan)
zero_test(engine_recompute TORCH RANKS 3 USES engine recompute base FILES engine_recompute)
