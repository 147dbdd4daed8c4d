zero_test(base USES base FILES glob trace LIBS nlohmann_json::nlohmann_json)
