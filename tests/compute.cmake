zero_test(compute TORCH APART "Zeros.*:FreedMemory.*:LentPages.*" USES compute FILES compute_threads copy cpu_allocator lent_pages)
