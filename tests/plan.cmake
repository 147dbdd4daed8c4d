find_package(nlohmann_json 3.11 REQUIRED)
zero_test(plan USES plan hf config base LIBS nlohmann_json::nlohmann_json
          FILES layout plan residency_policy residency_bytes tier_plan device_tier_plan precision_options)
zero_test(cluster USES plan pipeline hf config base LIBS nlohmann_json::nlohmann_json FILES cluster)
