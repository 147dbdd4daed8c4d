zero_test(launch USES launch)
zero_test(launch_output USES launch)
