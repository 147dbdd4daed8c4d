zero_test(base USES base FILES glob)
