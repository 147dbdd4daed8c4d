zero_test(compute TORCH USES compute FILES compute_threads cpu_allocator)
