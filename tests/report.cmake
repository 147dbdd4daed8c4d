# src/report: pages about runs.
zero_test(report USES report FILES report)
