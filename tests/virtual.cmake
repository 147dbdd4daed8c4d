zero_test(virtual TORCH USES virtual engine models seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_description virtual_shapes virtual_memory virtual_operators virtual_faults virtual_time virtual_models virtual_engine)
zero_test(virtual_ranks TORCH RANKS 2 USES virtual engine models mesh seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_mesh virtual_engine_ranks virtual_purposes virtual_host_waits virtual_mutations)
zero_test(virtual_network TORCH RANKS 4 USES virtual mesh compute base LIBS nlohmann_json::nlohmann_json FILES virtual_network)
# Tests of the engine, on virtual devices.
zero_test(engine_on_virtual TORCH RANKS 4 PREFIX virtual FILTER "-*Ranks1Accumulation3*:*Ranks2Accumulation3*:*Ranks3Accumulation1*:*Ranks4*"
          USES virtual engine models mesh seam compute base LIBS nlohmann_json::nlohmann_json
          FILES engine_modules engine_parity engine_checkpoint engine_writes zero_redundancy_optimizer engine_on_virtual)
zero_test(virtual_offload TORCH RANKS 3 USES virtual train engine models mesh seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_offload virtual_adaptive virtual_parameters virtual_offload_mutations virtual_eight_bit)
zero_test(virtual_train TORCH RANKS 2 USES virtual train engine models mesh seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_train)
