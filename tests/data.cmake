zero_test(tokenizer USES data LIBS nlohmann_json::nlohmann_json)
