zero_test(launch RANKS 2 USES launch FILES launch)
zero_test(launch_alone USES launch FILES launch_output)
