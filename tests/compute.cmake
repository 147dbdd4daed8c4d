zero_test(compute TORCH USES compute FILES compute_threads copy cpu_allocator lent_pages)
