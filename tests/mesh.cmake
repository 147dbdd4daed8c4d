zero_test(mesh TORCH RANKS 2 USES mesh launch FILES mesh mesh_groups mesh_failure mesh_launch)
zero_test(mesh_alone TORCH USES mesh FILES rendezvous diagnosis)
