# src/simulate: one rank of many, with shapes instead of data.
zero_test(simulate TORCH USES simulate virtual LIBS nlohmann_json::nlohmann_json FILES simulate)
zero_test(simulate_ranks TORCH RANKS 4 USES simulate virtual LIBS nlohmann_json::nlohmann_json FILES simulate_ranks)
