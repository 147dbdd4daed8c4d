zero_test(tensor TORCH RANKS 4 USES tensor models engine lazy FILES tensor_parallel)
