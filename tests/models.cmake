zero_test(models TORCH USES models plan hf config checkpoint base LIBS nlohmann_json::nlohmann_json
          FILES gpt2 head_loss linear_cross_entropy generate language_models)
