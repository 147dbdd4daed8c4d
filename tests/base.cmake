zero_test(base USES base FILES box glob output_file trace LIBS nlohmann_json::nlohmann_json)
