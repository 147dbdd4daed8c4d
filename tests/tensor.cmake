zero_test(tensor TORCH RANKS 4 USES tensor models engine lazy checkpoint FILES tensor_parallel tensor_parallel_engine)
