"""keep.py FROM TO COMMAND: a Google Benchmark result with machine, date and command, without what changes from run to run."""
import json
import sys

import machine

source, target, command = sys.argv[1:]
with open(source) as file:
    found = json.load(file)["benchmarks"]
drop = {"family_index", "per_family_instance_index", "run_name", "run_type", "repetitions", "repetition_index", "cpu_time"}
rows = [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items() if key not in drop} for row in found]
machine.save(target, command, {"benchmarks": rows})
