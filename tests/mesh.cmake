zero_test(mesh TORCH USES mesh)
