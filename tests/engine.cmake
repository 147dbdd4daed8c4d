set(operators cpu_operators)
set(operators_alone target_gradients)
if(NOT ZERO_CPU_OPERATORS)
  set(operators no_cpu_operators)
  set(operators_alone)
endif()
zero_test(engine TORCH RANKS 2 WAITS "Divergence.*:Modules.RanksThatNeedDifferentUnitsAreNamed:EngineAxes.*AreNamed:EngineAxes.*IsNamed*" TIMEOUT 600 USES engine models operators LIBS nlohmann_json::nlohmann_json
          FILES engine_parity engine_modules engine_traffic engine_checkpoint engine_save engine_any_mesh engine_axes engine_axes_saving engine_borrowed engine_golden passing_memory
                zero_redundancy_optimizer optimizer_rules tied_gradients engine_writes two_engines ${operators})
zero_test(engine_alone TORCH APART "*AndTheLossAreThePeakOfForward*:Lazy.PeakMemory*" USES engine models operators FILES lazy ${operators_alone} activations)
zero_test(engine_offload TORCH RANKS 3 USES engine models tiers train FILES engine_offload engine_placement engine_tiers engine_step_ahead engine_step_from_disk engine_disk_faults)
zero_test(engine_hosts TORCH RANKS 4 USES engine models FILES engine_hosts engine_hosts_network)
zero_test(loss_scale TORCH RANKS 3 USES engine models LIBS nlohmann_json::nlohmann_json FILES loss_scale engine_values)
zero_test(precision TORCH RANKS 4 USES engine models LIBS nlohmann_json::nlohmann_json FILES stochastic_rounding adafactor mixed_precision zero_redundancy_options loss_scale_steps)
# Models of other programs' people, recorded.
file(ARCHIVE_EXTRACT INPUT ${CMAKE_CURRENT_SOURCE_DIR}/golden/traced_models.tar.xz DESTINATION ${CMAKE_CURRENT_BINARY_DIR}/traced_models)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/golden/traced_models.tar.xz)
zero_test(traced_models TORCH RANKS 2 USES engine operators LIBS nlohmann_json::nlohmann_json FILES traced_models)
target_compile_definitions(traced_models_test PRIVATE ZERO_TRACED_MODELS="${CMAKE_CURRENT_BINARY_DIR}/traced_models")
