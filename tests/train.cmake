# src/train: from a configuration to a run directory.
zero_test(engine_options TORCH USES train)
zero_test(train TORCH RANKS 3 USES train LIBS nlohmann_json::nlohmann_json)
zero_test(run_directory TORCH RANKS 2 USES train LIBS nlohmann_json::nlohmann_json)
