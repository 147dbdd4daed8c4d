# src/stages: training through a pipeline.
zero_test(stages TORCH RANKS 4 TIMEOUT 600 USES stages mesh engine models operators FILES split_backward pipeline_training pipeline_faults)
zero_test(pipeline_runs TORCH RANKS 8 TIMEOUT 600 USES train export plan config LIBS nlohmann_json::nlohmann_json FILES pipeline_runs parallel_runs stage_balance pipeline_plan)
zero_test(parallel_matrix TORCH RANKS 8 TIMEOUT 900 USES train lazy tensor mesh checkpoint plan FILES parallel_matrix)
zero_test(suspended TORCH RANKS 4 TIMEOUT 600 USES stages mesh engine lazy FILES suspended_pipeline suspended_rules)
