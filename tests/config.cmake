# src/config: JSON text to a checked Config.
zero_test(config USES config)
zero_test(config_errors USES config)
zero_test(config_batch USES config)
zero_test(config_roundtrip USES config)
