zero_test(export USES export LIBS nlohmann_json::nlohmann_json ZLIB::ZLIB PkgConfig::XXHASH FILES export)
zero_test(export_torch TORCH USES export FILES export_torch)
