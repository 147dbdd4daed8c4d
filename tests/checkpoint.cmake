find_package(nlohmann_json 3.11 REQUIRED)
zero_test(checkpoint USES checkpoint LIBS nlohmann_json::nlohmann_json PkgConfig::XXHASH
          FILES checkpoint checkpoint_boxes checkpoint_corrupt checkpoint_faults)
