# src/stages: training through a pipeline.
zero_test(stages TORCH RANKS 4 TIMEOUT 600 USES stages engine models operators FILES split_backward pipeline_training)
