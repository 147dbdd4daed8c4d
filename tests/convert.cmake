# src/convert: other programs' settings.
zero_test(convert USES convert config base LIBS nlohmann_json::nlohmann_json FILES convert_config)
