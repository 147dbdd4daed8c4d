zero_test(virtual TORCH USES virtual engine models seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_description virtual_shapes virtual_memory virtual_operators virtual_faults virtual_time virtual_models virtual_engine)
zero_test(virtual_ranks TORCH RANKS 2 USES virtual engine models mesh seam compute base LIBS nlohmann_json::nlohmann_json
          FILES virtual_mesh virtual_engine_ranks virtual_purposes virtual_host_waits)
zero_test(virtual_network TORCH RANKS 4 USES virtual mesh compute base LIBS nlohmann_json::nlohmann_json FILES virtual_network)
