zero_test(launch RANKS 2 USES launch)
zero_test(launch_output USES launch)
