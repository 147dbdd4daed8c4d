zero_test(lazy TORCH USES engine)
