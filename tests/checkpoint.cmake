find_package(nlohmann_json 3.11 REQUIRED)
zero_test(checkpoint USES checkpoint LIBS nlohmann_json::nlohmann_json)
zero_test(checkpoint_corrupt USES checkpoint LIBS nlohmann_json::nlohmann_json PkgConfig::XXHASH)
zero_test(checkpoint_faults USES checkpoint)
