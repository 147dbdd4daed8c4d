zero_test(mesh TORCH RANKS 2 WAITS "RanksDiverge.*:RankIsLate.*:Joining.*:SharedMemoryWaits.*" USES mesh launch FILES mesh mesh_groups mesh_hosts shm mesh_failure mesh_launch)
# The same through Gloo: what the ranks of a test use otherwise is shared memory. How failures are found does not depend on it.
zero_test_again(mesh gloo FILTER "-SharedMemory*:BlockMap.*:Hosts*:RankDies.*:RankIsLate.*:Joining.*:LaunchedRanks.*:LaunchersStore.*:RanksDiverge.*" ENVIRONMENT ZERO_TEST_TRANSPORT=gloo RANKS 2)
zero_test_again(mesh gloo FILTER "RanksDiverge.*" ENVIRONMENT ZERO_TEST_TRANSPORT=gloo RANKS 1)
zero_test(mesh_alone TORCH USES mesh FILES rendezvous diagnosis row_sums)
