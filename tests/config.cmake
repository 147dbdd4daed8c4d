# src/config: JSON text to a checked Config.
zero_test(config USES config FILES config config_errors config_batch config_roundtrip config_help deepspeed_files)
