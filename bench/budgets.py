"""Step time over memory: what a step takes when a rank may keep only a share of what it would hold, and the rest is on disk. The
budgets take turns, so that what the machine does meanwhile hits them alike.

usage: budgets.py --zero PROGRAM --path DIR [--model NAME] [--budgets PERCENT,...] [--repeats N] [--out DIR] [-- OPTIONS of zero bench step]

100 % is what the plan of a rank says with everything in memory, activations included. Writes DIR/budgets-MODEL.json (machine, date,
command, every run), DIR/budgets-MODEL.md (a table) and DIR/budgets-MODEL.svg (a plot).
A budget in which no placement fits has a row that says so, with the least memory that would do.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys

import machine
import svg

HERE = os.path.dirname(os.path.abspath(__file__))


def reason(said, code):
    """What a rank said was wrong: the first error, and not that of the launcher, which says afterwards that a rank has failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"zero: .*error: ", line)]
    return (errors or lines or [f"exit code {code} without a word"])[0]


def least_of(problem):
    """Bytes of the least memory in which the states fit wherever they are, where that is what was wrong."""
    found = re.search(r"offload\.memory: .*\((\d+) bytes\) are needed", problem)
    return int(found.group(1)) if found else None


def run(command, limit_s):
    """A record of zero bench step, or None and why."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"more than {limit_s} s"
    if done.returncode != 0:
        return None, reason(done.stderr, done.returncode)
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def table(runs, base_mib, least=None):
    lines = ["| budget | MiB a rank | s a step, median | of the step in memory | states on disk, MiB | peak resident MiB | read + written a step, MiB |",
             "|---|---|---|---|---|---|---|"]
    least = least or {}
    for percent in sorted({*runs, *least}, reverse=True):
        if percent in least:
            mib = math.ceil(least[percent] / 2**20)
            lines.append(f"| {percent:g} % | {base_mib * percent / 100:.0f} | does not fit: {mib} MiB do ({100 * mib / base_mib:.0f} %) | | | | |")
            continue
        records = runs[percent]
        step_s = statistics.median(r["step_s"] for r in records)
        # Each beside the one in memory of its own round.
        ratio = statistics.median(r["ratio"] for r in records)
        moved = statistics.median(r.get("disk_read_mib_a_step", 0) + r.get("disk_written_mib_a_step", 0) for r in records)
        on_disk = statistics.median(r.get("tier_mib", {}).get("disk", 0) for r in records)
        peak = max(max(r["peak_rss_mib"]) for r in records)
        lines.append(f"| {percent:g} % | {base_mib * percent / 100:.0f} | {step_s:.2f} | {ratio:.3f} | {on_disk:.0f} | {peak} | {moved:.0f} |")
    return "\n".join(lines) + "\n"


def save_all(arguments, base_mib, runs, least):
    stem = os.path.join(arguments.out, f"budgets-{arguments.model}")
    machine.save(stem + ".json", arguments.said, {"base_mib": base_mib, "runs": [r for records in runs.values() for r in records],
                                                  "do_not_fit": [{"percent": p, "least_bytes": b} for p, b in least.items()]})
    with open(stem + ".md", "w") as file:
        file.write(table(runs, base_mib, least))
    points = [(percent, statistics.median(r["step_s"] for r in records)) for percent, records in sorted(runs.items())]
    svg.line(stem + ".svg", f"Seconds a step over memory ({arguments.model})", points, "% of what a rank would hold", "s")


def main():
    own, options = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, options = own[:at], own[at + 1:]
    parser = argparse.ArgumentParser(prog="budgets.py")
    parser.add_argument("--zero", required=True)
    parser.add_argument("--path", required=True, help="directory on a disk")
    parser.add_argument("--model", default="gpt2-medium")
    parser.add_argument("--budgets", default="100,50,25", help="percent, the whole among them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit-s", type=int, default=900)
    parser.add_argument("--quiet-s", type=int, default=30, help="seconds to wait, at most, until others leave the machine alone")
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--said", default=" ".join(sys.argv), help="the command to record")
    arguments = parser.parse_args(own)
    percents = sorted((float(p) for p in arguments.budgets.split(",")), reverse=True)
    if not percents or percents[0] != 100 or percents[-1] <= 0:
        parser.error("--budgets: expected shares of 100, 100 itself among them")
    command = [arguments.zero, "bench", "step", "--model", arguments.model, "--json", *options]
    steps = ["--steps", str(arguments.steps)]
    base, problem = run([*command, "--steps", "1", "--warmup", "0"], arguments.limit_s)
    if base is None:
        parser.exit(1, f"budgets.py: with everything in memory: {problem}\n")
    base_mib, runs, least, failed = base["plan_mib"], {percent: [] for percent in percents}, {}, False
    for repeat in range(arguments.repeats):
        whole_s = None
        for percent in percents:
            if percent in least:
                continue
            memory = [] if percent == 100 else ["--memory", f"{int(base_mib * percent / 100)}MiB", "--path", arguments.path]
            machine.wait_until_quiet(arguments.quiet_s)
            record, problem = run([*command, *steps, *memory], arguments.limit_s)
            if record is None and percent != 100 and least_of(problem):
                least[percent] = least_of(problem)
                print(f"{percent:g} % does not fit: {problem}", file=sys.stderr, flush=True)
                continue
            if record is None or whole_s is None and percent != 100:
                failed = True
                print(f"round {repeat + 1}, {percent:g} %: FAILED, {problem or 'nothing to compare with'}", file=sys.stderr, flush=True)
                continue
            whole_s = whole_s or record["step_s"]
            runs[percent].append({"percent": percent, "repeat": repeat, "ratio": round(record["step_s"] / whole_s, 4), **record})
            print(f"round {repeat + 1}, {percent:g} %: {record['step_s']} s a step, {max(record['peak_rss_mib'])} MiB", file=sys.stderr, flush=True)
        save_all(arguments, base_mib, {percent: records for percent, records in runs.items() if records}, least)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
