zero_test(tensor TORCH RANKS 4 USES tensor models engine lazy checkpoint FILES tensor_parallel tensor_parallel_engine tensor_parallel_loss parallel_layers hf_plan)
zero_test(tensor_train TORCH RANKS 4 USES train models export tensor compute LIBS nlohmann_json::nlohmann_json FILES tensor_parallel_train tensor_parallel_recompute)
