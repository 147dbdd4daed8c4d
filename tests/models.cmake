zero_test(models TORCH USES models plan LIBS nlohmann_json::nlohmann_json FILES gpt2 generate)
