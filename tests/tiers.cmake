zero_test(tiers USES tiers FILES disk_file disk_overlap)
