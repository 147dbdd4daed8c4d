zero_test(optim TORCH USES optim LIBS nlohmann_json::nlohmann_json
          FILES kernels rounded_kernels lr_schedule optimizer optimizer_spec torch_optimizer state_store)
zero_test(optimizer_golden TORCH USES optim LIBS nlohmann_json::nlohmann_json FILES optimizer_golden)
zero_test(eight_bit TORCH USES optim FILES eight_bit)
