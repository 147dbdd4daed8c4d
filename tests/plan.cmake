zero_test(layout USES plan)
