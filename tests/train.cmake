# src/train: from a configuration to a run directory.
zero_test(train TORCH RANKS 3 USES train export seam LIBS nlohmann_json::nlohmann_json ZLIB::ZLIB FILES train run_directory from_hf inference mapped_checkpoints train_placement monitors flops_profiler)
zero_test(train_activations TORCH RANKS 2 USES train export LIBS nlohmann_json::nlohmann_json FILES train_activations adapters_on_disk)
zero_test(adaptive_placement TORCH RANKS 3 USES train engine models plan LIBS nlohmann_json::nlohmann_json FILES adaptive_placement planned_peak)
zero_test(train_alone TORCH USES train LIBS nlohmann_json::nlohmann_json FILES from_config plan_report model_shape gpt2_shape)
zero_test(derivation TORCH RANKS 4 USES train LIBS nlohmann_json::nlohmann_json FILES derivation)

# The `zero` program, run as its users run it.
if(TARGET zero_tool)
  zero_test(tool RANKS 2 USES data plan hf config checkpoint base LIBS nlohmann_json::nlohmann_json FILES tool tool_fit tool_hf tool_bench tool_device tool_disk tool_simulate tool_rules)
  target_sources(tool_test PRIVATE ${PROJECT_SOURCE_DIR}/src/tool/text.cpp ${PROJECT_SOURCE_DIR}/src/tool/ports.cpp
                 ${PROJECT_SOURCE_DIR}/src/tool/fit_pace.cpp)
  target_compile_definitions(tool_test PRIVATE ZERO_TOOL="$<TARGET_FILE:zero_tool>")
  add_dependencies(tool_test zero_tool)
endif()
zero_test(mesh_plan TORCH RANKS 4 USES train tensor LIBS nlohmann_json::nlohmann_json FILES mesh_plan)
zero_test(pipeline_activations TORCH RANKS 2 USES train LIBS nlohmann_json::nlohmann_json FILES pipeline_activations)
zero_test(pipeline_inference TORCH RANKS 4 USES train data LIBS nlohmann_json::nlohmann_json FILES pipeline_inference)
if(TARGET zero_tool)
  target_compile_definitions(pipeline_inference_test PRIVATE ZERO_TOOL="$<TARGET_FILE:zero_tool>")
  add_dependencies(pipeline_inference_test zero_tool)
endif()
zero_test(cluster_plan TORCH USES train LIBS nlohmann_json::nlohmann_json FILES cluster_plan)
