zero_test(gpt2_shape USES plan LIBS nlohmann_json::nlohmann_json)
zero_test(gpt2 TORCH USES models plan LIBS nlohmann_json::nlohmann_json)
zero_test(generate TORCH USES models plan LIBS nlohmann_json::nlohmann_json)
