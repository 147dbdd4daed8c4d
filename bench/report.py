"""Tables and plots of what steps.py and the microbenchmarks wrote.

usage: report.py [--results DIR] [--into FILE]...

Prints a table for each set and the ratios that the project aims at; writes DIR/steps-SET.svg, and everything but the aims to
DIR/REPORT.md. The same for folders of DIR, which are of other processors. --into puts what a file has marks for between them:
`<!-- bench NAME -->` and `<!-- end -->`, where NAME is a set, ratios-SET, collectives, adam, dispatch, operators, flops, profiles
or files, and FOLDER/NAME for what a folder has.
"""
import argparse
import glob
import json
import math
import os
import re
import statistics
import sys

import svg

HERE = os.path.dirname(os.path.abspath(__file__))


# As in steps.py.
ON_LIBTORCH = "plain, LibTorch's operators, "
KINDS = (ON_LIBTORCH, "plain ", "")


def is_ours(case):
    return case.startswith("zero.cpp")


class Steps:
    """The runs of one set by case."""

    def __init__(self, path):
        with open(path) as file:
            self.record = json.load(file)
        self.name = self.record["set"]
        self.runs = {}
        for run in self.record["runs"]:
            self.runs.setdefault(run["case"], []).append(run)
        # Two models in one process: only the ratio of their steps means something.
        self.beside_alone = any("alone_s" in run for run in self.record["runs"])
        # Measured in turn, shown by kind.
        self.runs = dict(sorted(self.runs.items(), key=lambda item: is_ours(item[0])))

    def median(self, case, field="step_s"):
        return statistics.median(run[field] for run in self.runs[case])

    def largest(self, case, field):
        return max(max(run[field]) for run in self.runs[case])

    def ratio(self, case, other):
        """Median over the rounds of case / other in the same round."""
        ours = {run["repeat"]: run["step_s"] for run in self.runs[case]}
        theirs = {run["repeat"]: run["step_s"] for run in self.runs[other]}
        return statistics.median(ours[r] / theirs[r] for r in sorted(ours.keys() & theirs.keys()))

    def fastest(self, case):
        return min(run["step_s_min"] for run in self.runs[case])

    def has(self, *cases):
        return all(case in self.runs for case in cases)


def about(steps):
    where = steps.record["machine"]
    units = ", ".join(where["vector_units"][-2:])
    rounds = len({run["repeat"] for run in steps.record["runs"]})
    return (f"{where['processor']} ({units}), {where['cores']} cores, {where['memory_gib']} GiB; "
            f"{f'{rounds} rounds' if rounds > 1 else 'one round'} of all cases in alternation, median of each; "
            f"`{steps.record['command']}`, commit {steps.record['commit']}")


def table(steps):
    lines = ["| | seconds per step | fastest | tokens/s | peak resident MiB per rank | proportional MiB | seconds to the first step | loss |",
             "|---|---|---|---|---|---|---|---|"]
    for case, runs in steps.runs.items():
        tokens = statistics.median(run["tokens_per_s"] for run in runs)
        lines.append(f"| {case} | {steps.median(case):.3f} | {min(r['step_s_min'] for r in runs):.3f} | {tokens:.0f} | "
                     f"{steps.largest(case, 'peak_rss_mib')} | {steps.largest(case, 'pss_mib')} | "
                     f"{steps.median(case, 'start_s'):.1f} | {runs[-1]['loss_first']:.4f} → {runs[-1]['loss']:.4f} |")
    return "\n".join(lines)


# Bytes an element: gradient and two moments in and out, and the master: split in halves, or whole beside its copy.
BYTES_OF_ADAM = {"AdamW_split": 4 + 2 * 8 + 8, "AdamW": 4 + 2 * 8 + 10}


def adam_s(steps, folder):
    """What the update of a step takes at the memory's speed, all ranks at once; None where it was not measured."""
    run = steps.record["runs"][0]
    for rule, each in BYTES_OF_ADAM.items():
        streams = [row["stream"] for row in load(folder, "optimizer") if row["name"].startswith(rule + "/") and "threads:2" in row["name"]]
        if streams:
            return run["params"] * each / (streams[-1] * 1e9)
    return None


def slack_of(set_name):
    """Other widths, types and numbers of ranks may be 15 % further off."""
    return 1.0 if set_name in ("gpt2-bf16", "gpt2-bf16-floor", "gpt2-bf16-split", "gpt2-bf16-1-rank") else 1.15


def verdict_of(ratio, most):
    return "holds" if ratio <= most else "MISSED"


def floor_rows(steps, folder):
    """Our steps over forward and backward alone plus Adam at the memory's speed: of the same run where that was measured, else of
    the same round."""
    lines, adam, most = [], adam_s(steps, folder), 1.12 * slack_of(steps.name)
    is_aimed_at = "short" not in steps.name  # there the model's own work is little
    for kind in KINDS:
        alone = f"zero.cpp {'plain ' if kind == ON_LIBTORCH else kind}forward + backward"
        in_round = {run["repeat"]: (run["step_s"], run["step_s_min"]) for run in steps.runs.get(alone, [])}
        for stage in range(4):
            case = f"zero.cpp {kind}stage {stage}"
            pairs = [(run, (run["alone_s"], run["alone_s_min"]) if "alone_s" in run else in_round.get(run["repeat"]))
                     for run in steps.runs.get(case, [])]
            pairs = [(run, floor) for run, floor in pairs if floor]
            if not pairs or adam is None:
                continue
            ratio = statistics.median(run["step_s"] / (floor + adam) for run, (floor, _) in pairs)
            fastest = min(run["step_s_min"] for run, _ in pairs) / (min(floor for _, (_, floor) in pairs) + adam)
            aim = f"{most:.3g} | {verdict_of(ratio, most)}" if kind == ON_LIBTORCH and is_aimed_at else " | "
            lines.append(f"| {case} | {alone} + Adam at memory speed ({adam:.3f} s) | {ratio:.3f} | {fastest:.3f} | {aim} |")
    return lines


def stage_rows(steps):
    """Stage 3 over stage 0 where both took turns in one run."""
    lines, most = [], 1.05 * slack_of(steps.name)
    for kind in KINDS:
        runs = [run for run in steps.runs.get(f"zero.cpp {kind}stage 3", []) if "stage_0_s" in run]
        if not runs:
            continue
        ratio = statistics.median(run["step_s"] / run["stage_0_s"] for run in runs)
        fastest = min(run["step_s_min"] for run in runs) / min(run["stage_0_s_min"] for run in runs)
        lines.append(f"| zero.cpp {kind}stage 3 | zero.cpp {kind}stage 0, in turn | {ratio:.3f} | {fastest:.3f} | {most:.3g} | "
                     f"{verdict_of(ratio, most)} |")
    return lines


def aims(set_name):
    """(what, case, other case, at most): the step of a case over that of another."""
    plain, ours, same = "zero.cpp plain ", "zero.cpp ", f"zero.cpp {ON_LIBTORCH}"
    # The same operators on both sides: what the engine itself is worth.
    pairs = [("stage 3", "FSDP2 reshard"), ("stage 3", "DeepSpeed ZeRO-3"), ("stage 3, private", "FSDP2 reshard"),
             ("stage 3, private", "DeepSpeed ZeRO-3"), ("stage 2", "FSDP2 no reshard"), ("stage 2", "DeepSpeed ZeRO-2"),
             ("stage 1", "DDP + ZeroRedundancyOptimizer"), ("stage 1", "DeepSpeed ZeRO-1"), ("stage 0", "DDP")]
    result = [(what, f"{same}{what}", f"{peer}{tuned}", None) for what, peer in pairs for tuned in ("", ", tuned")]
    result += [
        ("stage 3", f"{plain}stage 3", "FSDP2 reshard", 0.25), ("stage 3", f"{plain}stage 3", "DeepSpeed ZeRO-3", 0.30),
        ("stage 3", f"{plain}stage 3", "FSDP2 reshard, tuned", 0.34), ("stage 3", f"{plain}stage 3", "DeepSpeed ZeRO-3, tuned", 0.40),
        ("stage 1", f"{plain}stage 1", "DeepSpeed ZeRO-1", 0.32), ("stage 2", f"{plain}stage 2", "DeepSpeed ZeRO-2", 0.32),
        ("stage 2", f"{plain}stage 2", "FSDP2 no reshard", 0.34), ("stage 1", f"{plain}stage 1", "DDP + ZeroRedundancyOptimizer", 0.45)]
    for stage in range(4):
        result += [(f"stage {stage}", f"{plain}stage {stage}", "DDP", 0.48), (f"stage {stage}", f"{plain}stage {stage}", "DDP, tuned", 0.55)]
    result += [
        ("our model", f"{ours}forward + backward", "PyTorch forward + backward", 0.75),
        ("stage 3 over stage 0", f"{plain}stage 3", f"{plain}stage 0", 1.05), ("stage 3 over stage 0", f"{ours}stage 3", f"{ours}stage 0", 1.05)]
    result += [("our model, stage 3", f"{ours}stage 3", peer, 0.42) for peer in ("DDP", "DDP, tuned", "DDP + ZeroRedundancyOptimizer")]
    return [(what, case, other, most and most * slack_of(set_name)) for what, case, other, most in result]


def split_rows(steps):
    """Tokens a second of two ranks over those of two threads, for the same two sequences a step."""
    lines = []
    for kind in ("plain ", ""):
        ranks, threads = (f"zero.cpp {kind}stage 3, {split}" for split in ("2 ranks x 1 thread", "1 rank x 2 threads"))
        if steps.has(ranks, threads):
            ratio, fastest = 1 / steps.ratio(ranks, threads), steps.fastest(threads) / steps.fastest(ranks)
            verdict = "holds" if ratio >= 1 else "MISSED"
            lines.append(f"| {ranks}: tokens/s | {threads} | {ratio:.3f} | {fastest:.3f} | at least 1 | {verdict} |")
    return lines


def mesh_rows(steps):
    """Ours over the peers' on each mesh and over data-parallel ranks alone, and ranks that share layers over threads."""
    lines = []

    def add(case, other, most):
        if steps.has(case, other):
            ratio, fastest = steps.ratio(case, other), steps.fastest(case) / steps.fastest(other)
            verdict = "" if most is None else verdict_of(ratio, most)
            lines.append(f"| {case} | {other} | {ratio:.3f} | {fastest:.3f} | {'' if most is None else format(most, '.3g')} | {verdict} |")

    for mesh in ("d4", "d2·t2", "t2·p2", "d2·p2"):
        for kind in KINDS:
            case = f"zero.cpp {kind}stage 2, {mesh}"
            for peer in ("DTensor + pipelining", "Megatron's layout"):
                add(case, f"{peer}, {mesh}", 0.6 if mesh != "d4" else None)
            if mesh != "d4":
                add(case, f"zero.cpp {kind}stage 2, d4", None)
    for kind in ("plain ", ""):
        for split in ("t2 x 1 thread", "t2 x 1 thread, sequence"):
            add(f"zero.cpp {kind}stage 2, {split}", f"zero.cpp {kind}stage 2, 1 rank x 2 threads", 1.08)
    return lines


def plan_rows(steps):
    """Measured peaks over the plan's figure and the process."""
    lines, most = [], 0.05 * slack_of(steps.name)
    for case, runs in steps.runs.items():
        if "plan_mib" not in runs[-1]:
            continue
        ratio = steps.largest(case, "peak_rss_mib") / max(run["plan_mib"] + run["process_mib"] for run in runs)
        lines.append(f"| {case}: peak resident | `zero plan` + the process | {ratio:.3f} | | {1 - most:.3g} to {1 + most:.3g} | "
                     f"{verdict_of(abs(ratio - 1), most)} |")
    return lines


def start_rows(steps):
    """Seconds from the command to the first step: in themselves for GPT-2 124M, and over the fastest peer's."""
    lines, share = [], 0.3 * slack_of(steps.name)
    most, said = (1.5, " (at most 1.5)") if "--model gpt2 " in steps.record["work"] else (math.inf, "")
    peers = [steps.median(case, "start_s") for case in steps.runs if not is_ours(case)]
    for case in ("zero.cpp plain stage 3", "zero.cpp stage 3"):
        if not peers or not steps.has(case):
            continue
        start = steps.median(case, "start_s")
        lines.append(f"| {case}: {start:.2f} s to the first step{said} | the fastest peer's {min(peers):.2f} s | "
                     f"{start / min(peers):.3f} | | {share:.3g} | {verdict_of(start, min(most, share * min(peers)))} |")
    return lines


def memory_rows(steps):
    """Peaks at stage 3 over the best peer's: resident, and with each shared page divided by its users."""
    peers = [c for c in ("FSDP2 reshard", "DeepSpeed ZeRO-3") if steps.has(c)]
    lines, most = [], 0.5 * slack_of(steps.name)
    for field, said in (("peak_rss_mib", "resident"), ("peak_pss_mib", "proportional")):
        for case in ("zero.cpp plain stage 3", "zero.cpp stage 3"):
            if not peers or not steps.has(case) or any(field not in run for c in (*peers, case) for run in steps.runs[c]):
                continue
            ratio = steps.largest(case, field) / min(steps.largest(c, field) for c in peers)
            lines.append(f"| {case}: peak {said} | best peer's stage 3 | {ratio:.3f} | | {most:.3g} | {verdict_of(ratio, most)} |")
    return lines


def ratios(steps, folder):
    # What took turns in one run tells more than a round does.
    beside = os.path.join(folder, f"steps-{steps.name}-floor.json")
    in_turn = stage_rows(Steps(beside)) if os.path.exists(beside) else []
    lines = ["| step of | over that of | ratio | of the fastest steps | at most | |", "|---|---|---|---|---|---|",
             *([] if os.path.exists(beside) else floor_rows(steps, folder))]
    if steps.beside_alone:
        return "\n".join(lines + stage_rows(steps))
    for what, case, other, most in aims(steps.name):
        if not steps.has(case, other) or (in_turn and what == "stage 3 over stage 0"):
            continue
        ratio = steps.ratio(case, other)
        verdict = "" if most is None else verdict_of(ratio, most)
        fastest = steps.fastest(case) / steps.fastest(other)
        lines.append(f"| {case} | {other} | {ratio:.3f} | {fastest:.3f} | {'' if most is None else format(most, '.3g')} | {verdict} |")
    lines += split_rows(steps) + mesh_rows(steps) + start_rows(steps) + plan_rows(steps)
    lines += memory_rows(steps)
    return "\n".join(lines)


def work_of(steps):
    """"gpt2, bf16, 2 ranks x 1 thread, 256 tokens", of a run whose ranks and threads all cases share."""
    run = steps.record["runs"][0]
    shared = len({(r["ranks"], r["threads"]) for runs in steps.runs.values() for r in runs if r["peer"] == "zero.cpp"}) == 1
    split = f", {run['ranks']} ranks x {run['threads']} thread{'s' if run['threads'] > 1 else ''}" if shared else ""
    return f"{run['model']}, {run['dtype']}{split}, sequence {run['seq']}"


def plot(steps, folder):
    def kind_of(case):
        return "limit" if case.endswith("forward + backward") else "ours" if case.startswith("zero.cpp") else "peer"

    # Peers, then what no engine can be faster than, then ours.
    cases = sorted(steps.runs, key=lambda case: list(svg.KINDS).index(kind_of(case)))
    bars = [(case, steps.median(case), kind_of(case)) for case in cases]
    svg.bars(os.path.join(folder, f"steps-{steps.name}.svg"), f"Seconds per step, median ({work_of(steps)})", bars, "s")
    bars = [(case, steps.largest(case, "peak_rss_mib"), kind_of(case)) for case in cases]
    svg.bars(os.path.join(folder, f"memory-{steps.name}.svg"), f"Peak resident memory of a rank ({work_of(steps)})", bars, "MiB")


def put_between_marks(path, name, text):
    with open(path) as file:
        whole = file.read()
    marks = re.compile(rf"(<!-- bench {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
    if not marks.search(whole):
        return
    with open(path, "w") as file:
        file.write(marks.sub(lambda found: found[1] + text + "\n" + found[2], whole))


def short_table(steps):
    """For the README."""
    lines = ["| | seconds per step | fastest | tokens/s | peak MiB per rank | seconds to the first step |", "|---|---|---|---|---|---|"]
    for case, runs in steps.runs.items():
        tokens = statistics.median(run["tokens_per_s"] for run in runs)
        lines.append(f"| {case} | {steps.median(case):.2f} | {steps.fastest(case):.2f} | {tokens:.0f} | {steps.largest(case, 'peak_rss_mib')} | "
                     f"{steps.median(case, 'start_s'):.1f} |")
    return "\n".join(lines)


def load(folder, name):
    path = os.path.join(folder, name + ".json")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return json.load(file)["benchmarks"]


def collectives(folder):
    def medians(rows, *fields):
        """{name: medians of its rows}, without Google Benchmark's /iterations:N."""
        by_name = {}
        for row in rows:
            by_name.setdefault(row["name"].split("/iterations")[0], []).append(row)
        return {name: [statistics.median(row[field] for row in same) for field in fields] for name, same in by_name.items()}

    ours = medians(load(folder, "collectives"), "ms", "gloo_ms", "direct_ms", "of_direct")
    theirs = medians(load(folder, "peers-collectives"), "ms")
    lines = ["| collective | ms | PyTorch's Gloo ms | times faster (>= 6) | our channel over Gloo ms | bare shared memory ms | of it (>= 0.8) |",
             "|---|---|---|---|---|---|---|"]
    for name, (ms, over_gloo, direct, of_direct) in ours.items():
        beside = "{:.2f} | {:.1f}".format(theirs[name][0], theirs[name][0] / ms) if name in theirs else " | "
        lines.append(f"| {name} | {ms:.2f} | {beside} | {over_gloo:.2f} | {direct:.2f} | {of_direct:.2f} |")
    return "\n".join(lines) if ours else ""


def adam(folder):
    """Our kernel of the machine's best instructions, its share of the memory's speed, and the peers' flows."""
    peers = load(folder, "peers-adam")
    lines = ["| AdamW, 32 Mi elements, bf16 parameters, fp32 master | threads | ms | GB/s | of the memory's speed (>= 0.9) |", "|---|---|---|---|---|"]
    ours = [row for row in load(folder, "optimizer") if row["name"].startswith("AdamW")]
    if not ours:
        return ""
    best = ours[-1]["name"].split("/")[1]
    for row in ours:
        rule, kernels, threads, *_ = row["name"].split("/")
        if kernels == best:
            master = "master in two halves" if rule == "AdamW_split" else "whole master"
            lines.append(f"| zero.cpp, {kernels}, {master} | {threads.split(':')[1]} | {row['real_time']:.1f} | {row['GB/s']:.1f} | {row['of_stream']:.2f} |")
    lines += [f"| {row['name']} | {row['threads']} | {row['ms']:.1f} | | |" for row in peers]
    return "\n".join(lines)


def dispatch(folder):
    rows = load(folder, "dispatch")
    if not rows:
        return ""
    row = rows[0]
    return (f"Operators of a step of GPT-2 124M, forward and backward: {row['operators']:.0f}. One of them takes {row['plain_ns']:.0f} ns alone and "
            f"{row['seen_ns']:.0f} ns where the engine sees it: {100 * row['share']:.2f} % of the step (at most 1 %).")


def operators(folder):
    """LibTorch's operators and ours."""
    rows = load(folder, "operators")
    if not rows:
        return ""
    lines = ["| forward and backward, 256 tokens | dtype | times a step | LibTorch's, ms | ours, ms | |", "|---|---|---|---|---|---|"]
    lines += [f"| {row['operator']} | {row['dtype']} | {row['times']} | {row['libtorch_ms']:.2f} | {row['ours_ms']:.2f} | "
              f"{row['ours_ms'] / row['libtorch_ms']:.2f} |" for row in rows]
    return "\n".join(lines)


def flops(folder):
    """Forward and backward against the rate of their matrix products."""
    rows = load(folder, "flops")
    if not rows:
        return ""
    lines = ["| dtype | | registers alone, GFLOP/s a thread | the products alone, GFLOP/s a thread | forward + backward, s | GFLOP/s a thread "
             "| of the products' rate |", "|---|---|---|---|---|---|---|"]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        mine = [row for row in rows if row["dtype"] == dtype]
        work = (mine[0]["gemm_flops"] + mine[0]["attention_flops"]) / 1e9
        for name, field, rate in (("(a) plain, LibTorch's products", "plain_s", "gemm_gflops_per_s"), ("(b) ours", "ours_s", "our_gemm_gflops_per_s")):
            seconds, alone = (statistics.median(row[key] for row in mine) for key in (field, rate))
            share = statistics.median(work / row[field] / row[rate] for row in mine)
            limits = [row["unit_gflops_per_s"] for row in mine if "unit_gflops_per_s" in row]
            limit = f"{statistics.median(limits):.0f}" if limits else ""
            lines.append(f"| {dtype} | {name} | {limit} | {alone:.0f} | {seconds:.3f} | {work / seconds:.0f} | {share:.2f} |")
    return "\n".join(lines)


def profiles(folder):
    """Where a step's time goes."""
    rows = load(folder, "profiles")
    if not rows:
        return ""
    lines = ["| percent of a step | (a) plain | (b) ours |", "|---|---|---|"]
    lines += [f"| {row['kind']} | {row['plain']:.1f} | {row['ours']:.1f} |" for row in rows]
    return "\n".join(lines)


def files(folder):
    """Checkpoint files beside the disk's own speed, and what a save in the background costs."""
    lines = []
    for row in load(folder, "checkpoint"):
        lines += [f"| a checkpoint of {row['mebibytes']} MiB | MiB/s | plain file, same run | share (>= 0.8) |", "|---|---|---|---|"]
        for what, plain in (("read", "sequential read, cold"), ("write", "sequential write with fsync")):
            lines.append(f"| {what} | {row[f'{what}_checkpoint_mib_s']:.0f} | {plain}: {row[f'{what}_plain_mib_s']:.0f} | {row[f'{what}_share']:.2f} |")
    for row in load(folder, "saving"):
        stall, steps = sorted(row["stall_s"]), sorted(row["step_s"])
        lines += ["", f"A save of {row['checkpoint_mib']} MiB in the background, {row['ranks']} ranks of GPT-2 124M: training waits "
                      f"{sorted(row['begin_s'])[len(row['begin_s']) // 2]:.2f} s for the copy, and with it the steps beside the save take "
                      f"{stall[len(stall) // 2]:.2f} s longer in all, where a step takes {steps[len(steps) // 2]:.2f} s: "
                      f"{100 * row['stall_share']:.1f} % of {row['interval_steps']} steps (at most 5 %)."]
    return "\n".join(lines)


# What the project aims at tells a reader of the figures nothing.
AIM = re.compile(r" \((?:>=|at most) [0-9.]+ ?%?\)")


def without_aims(text):
    """A ratio's last two columns are the aim and whether it holds; elsewhere an aim stands in brackets."""
    lines = [("|".join(line.split("|")[:-3]) + "|") if line.startswith("|") else line for line in text.split("\n")]
    return AIM.sub("", "\n".join(lines))


MICRO = {collectives: "Collectives between two ranks, milliseconds", adam: "The optimizer's kernel", dispatch: "An operator's way through the engine",
         operators: "Operators computed in LibTorch's place", flops: "Forward and backward against the rate of matrix products",
         profiles: "Where a step's time goes", files: "Checkpoint files"}


def report(folder, arguments, pages):
    """Adds what the folder holds to `pages`. False where it holds no steps."""
    paths = sorted(glob.glob(os.path.join(folder, "steps-*.json")))
    prefix = os.path.relpath(folder, arguments.results) + "/" if folder != arguments.results else ""
    for path in paths:
        steps = Steps(path)
        text = f"{table(steps)}\n\n{about(steps)}"
        beside = ratios(steps, folder)
        print(f"## {prefix}{steps.name}\n\n{text}\n\n{beside}\n")
        pages.append(f"## {prefix}{steps.name}\n\n{text}\n\n{without_aims(beside)}")
        if not steps.beside_alone:
            plot(steps, folder)
        for file in arguments.into:
            put_between_marks(file, prefix + steps.name, f"{short_table(steps)}\n\n{about(steps)}")
            put_between_marks(file, f"{prefix}ratios-{steps.name}", without_aims(beside))
    for make, title in MICRO.items():
        if text := make(folder):
            print(text + "\n")
            said = AIM.sub("", text)
            pages.append(f"## {prefix}{make.__name__}: {title}\n\n{said}")
            for file in arguments.into:
                put_between_marks(file, prefix + make.__name__, said)
    return bool(paths)


def main():
    parser = argparse.ArgumentParser(prog="report.py")
    parser.add_argument("--results", default=os.path.join(HERE, "results"))
    parser.add_argument("--into", action="append", default=[])
    arguments = parser.parse_args()
    folders = [arguments.results, *sorted(glob.glob(os.path.join(arguments.results, "*", "")))]
    pages = ["# Measured\n\nGenerated by `bench/report.py` from the JSON files beside it, which hold machine, date, commit and command of "
             "every run. docs/performance.md says what the cases are; figures of an earlier commit are those of its code."]
    found = any([report(folder, arguments, pages) for folder in folders])
    if len(pages) > 1:
        with open(os.path.join(arguments.results, "REPORT.md"), "w") as file:
            file.write("\n\n".join(pages) + "\n")
    if not found:
        print(f"report.py: {arguments.results} has no steps-*.json; run ./dev bench or ./dev peers first", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
