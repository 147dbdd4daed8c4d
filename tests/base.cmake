zero_test(base USES base FILES box glob host_routes output_file strict_json trace LIBS nlohmann_json::nlohmann_json)
