zero_test(pipeline USES pipeline base FILES pipeline_schedules)
