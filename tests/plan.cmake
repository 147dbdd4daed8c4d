zero_test(layout USES plan)
zero_test(plan USES plan)
