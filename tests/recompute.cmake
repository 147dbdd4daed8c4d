zero_test(recompute TORCH USES recompute mesh seam compute base FILES recompute chain_plan block_chain)
zero_test(engine_recompute TORCH RANKS 3 USES engine recompute base FILES engine_recompute)
