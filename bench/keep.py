"""keep.py FROM[,FROM...] TO COMMAND: Google Benchmark results, or lines of JSON, with machine, date and command, without what
changes from run to run."""
import json
import sys

import machine

sources, target, command = sys.argv[1:]
rows = []
for source in sources.split(","):
    with open(source) as file:
        text = file.read()
    rows += [json.loads(line) for line in text.splitlines()] if source.endswith(".jsonl") else json.loads(text)["benchmarks"]
drop = {"family_index", "per_family_instance_index", "run_name", "run_type", "repetitions", "repetition_index", "cpu_time"}
rows = [{key: round(value, 4) if isinstance(value, float) else value for key, value in row.items() if key not in drop} for row in rows]
machine.save(target, command, {"benchmarks": rows})
