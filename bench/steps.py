"""Times whole training steps of ours and of the peers, in alternation: all cases once, then all again, so that what the machine does
meanwhile hits them alike.

usage: steps.py --zero PROGRAM [--peers VENV] [--set NAME,...] [--repeats N] [--more] [--out DIR] [--only WORD,...]

Writes DIR/steps-SET.json: machine, date, command, and every run's record with the case it belongs to.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import time

import machine

HERE = os.path.dirname(os.path.abspath(__file__))

# A set is one piece of work that every case does: a batch of one sequence of 256 tokens a rank, unless it says otherwise.
USUAL = {"--batch": "1", "--seq": "256"}
SETS = {
    "gpt2-bf16": ["--model", "gpt2", "--dtype", "bf16", "--ranks", "2"],
    "gpt2-fp32": ["--model", "gpt2", "--dtype", "fp32", "--ranks", "2"],
    "gpt2-medium-bf16": ["--model", "gpt2-medium", "--dtype", "bf16", "--ranks", "2"],
    "gpt2-bf16-4-ranks": ["--model", "gpt2", "--dtype", "bf16", "--ranks", "4", "--threads", "1"],
    "gpt2-fp32-4-ranks": ["--model", "gpt2", "--dtype", "fp32", "--ranks", "4", "--threads", "1"],
    "gpt2-bf16-1-rank": ["--model", "gpt2", "--dtype", "bf16", "--ranks", "1", "--threads", "2"],
    "gpt2-bf16-split": ["--model", "gpt2", "--dtype", "bf16"],
    "gpt2-fp32-split": ["--model", "gpt2", "--dtype", "fp32"],
    "gpt2-bf16-floor": ["--model", "gpt2", "--dtype", "bf16", "--ranks", "2"],
    "gpt2-fp32-floor": ["--model", "gpt2", "--dtype", "fp32", "--ranks", "2"],
    # So few tokens that a step is the engine's work as much as the model's, on any processor.
    "gpt2-fp32-short-floor": ["--model", "gpt2", "--dtype", "fp32", "--ranks", "2", "--seq", "24"],
    "gpt2-bf16-meshes": ["--model", "gpt2", "--dtype", "bf16"],
    "gpt2-fp32-meshes": ["--model", "gpt2", "--dtype", "fp32"],
    "tiny": ["--model", "tiny", "--dtype", "bf16", "--ranks", "2"],
    "tiny-meshes": ["--model", "tiny", "--dtype", "fp32"],
}

# A run during which others used more cores than this (other_cpu: the system's busy and stolen time less the run's own) is made again.
MOST_OTHER_CPU, MOST_TRIES = 0.3, 3

# Peers' allocator settings that spare them the page faults of every step.
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 35), "MALLOC_TOP_PAD_": str(1 << 28)}

PEERS = {
    "DDP": "ddp.py --mode ddp",
    "DDP + ZeroRedundancyOptimizer": "ddp.py --mode zero1",
    "FSDP2 no reshard": "fsdp2.py --mode zero2",
    "FSDP2 reshard": "fsdp2.py --mode zero3",
    "DeepSpeed ZeRO-1": "deepspeed_zero.py --mode zero1",
    "DeepSpeed ZeRO-2": "deepspeed_zero.py --mode zero2",
    "DeepSpeed ZeRO-3": "deepspeed_zero.py --mode zero3",
    "PyTorch forward + backward": "ddp.py --mode alone",
}
TUNED_PEERS = ["DDP", "FSDP2 reshard", "DeepSpeed ZeRO-3"]


# What ours run, by the words between "zero.cpp " and "stage": a model from torch::nn modules on LibTorch's operators, which is what the
# peers run; the same on ours; and the library's own model.
KINDS = {"plain, LibTorch's operators, ": ["--plain", "--operators", "libtorch"], "plain ": ["--plain"], "": []}

# Two sequences a step on two cores, split over ranks or over threads: the set's cases, by what each does.
SPLITS = {
    "1 rank x 2 threads": ["--ranks", "1", "--threads", "2", "--batch", "2"],
    "2 ranks x 1 thread": ["--ranks", "2", "--threads", "1", "--batch", "1"],
}

# Eight sequences a step, by what four ranks share: d data-parallel, t ranks a layer, p a pipeline.
MESHES = {
    "d4": ["--grad-accum", "2"],
    "d2·t2": ["--tensor", "2", "--grad-accum", "4"],
    "t2·p2": ["--tensor", "2", "--pipeline", "2", "--grad-accum", "8"],
    "d2·p2": ["--pipeline", "2", "--grad-accum", "4"],
}
MESH_PEERS = {"DTensor + pipelining": "dtensor", "Megatron's layout": "megatron"}
# The same work on one rank with two threads.
PAIRS = {
    "1 rank x 2 threads": ["--ranks", "1", "--threads", "2", "--batch", "8"],
    "t2 x 1 thread": ["--ranks", "2", "--threads", "1", "--tensor", "2", "--batch", "8"],
    "t2 x 1 thread, sequence": ["--ranks", "2", "--threads", "1", "--tensor", "2", "--sequence", "--batch", "8"],
}


def usual_of(set_name):
    """The options that neither the set nor its cases say."""
    of_cases = SPLITS if set_name.endswith("-split") else PAIRS if set_name.endswith("-meshes") else {}
    said = [*SETS[set_name], *itertools.chain(*of_cases.values())]
    return [word for option, value in USUAL.items() if option not in said for word in (option, value)]


def split_cases(zero):
    result = {}
    for kind, option in (("plain ", ["--plain"]), ("", [])):
        for name, split in SPLITS.items():
            result[f"zero.cpp {kind}stage 3, {name}"] = ([zero, "bench", "step", "--json", "--stage", "3", *option, *split], {})
    return result


def mesh_cases(zero, peers):
    """Each mesh on the peers' layouts and on ours, then ranks that share layers beside threads."""
    result = {}
    four = ["--ranks", "4", "--threads", "1", "--batch", "1"]
    for mesh, options in MESHES.items():
        if peers:
            driver = [os.path.join(peers, "bin", "python"), os.path.join(HERE, "peers", "tensor_pipeline.py")]
            for name, mode in MESH_PEERS.items():
                result[f"{name}, {mesh}"] = ([*driver, "--mode", mode, *four, *options], {})
        for kind, option in KINDS.items():
            result[f"zero.cpp {kind}stage 2, {mesh}"] = ([zero, "bench", "step", "--json", "--stage", "2", *option, *four, *options], {})
    for kind in ("plain ", ""):
        for name, options in PAIRS.items():
            result[f"zero.cpp {kind}stage 2, {name}"] = ([zero, "bench", "step", "--json", "--stage", "2", *KINDS[kind], *options], {})
    return result


def floor_cases(zero):
    """Each stage with forward and backward alone after every step, and the last with the first, in one run: what a machine of changing
    speed cannot blur."""
    beside = ["alone", "alone", "alone", "alone,0"]
    return {f"zero.cpp {kind}stage {stage}": ([zero, "bench", "step", "--json", "--stage", str(stage), "--beside", beside[stage], *option], {})
            for kind, option in KINDS.items() for stage in range(4)}


def cases(arguments, set_name):
    """name -> (command, environment)"""
    if set_name.endswith("-split"):
        return selected(arguments, split_cases(arguments.zero))
    if set_name.endswith("-meshes"):
        return selected(arguments, mesh_cases(arguments.zero, arguments.peers))
    if set_name.endswith("-floor"):
        return selected(arguments, floor_cases(arguments.zero))
    peers, ours = {}, {}
    if arguments.peers:
        python = os.path.join(arguments.peers, "bin", "python")
        for name, driver in PEERS.items():
            file, *mode = driver.split()
            command = [python, os.path.join(HERE, "peers", file), *mode]
            peers[name] = (command, {})
            if name in TUNED_PEERS:
                peers[name + ", tuned"] = (command, TUNED)
    for name, option in KINDS.items():
        if "--operators" not in option:  # alone, a plain model is on LibTorch's operators anyway
            ours[f"zero.cpp {name}forward + backward"] = ([arguments.zero, "bench", "step", "--json", "--alone", *option], {})
        for stage in range(4):
            command = [arguments.zero, "bench", "step", "--json", "--stage", str(stage), *option]
            ours[f"zero.cpp {name}stage {stage}"] = (command, {})
            if stage == 3 and "--operators" in option:  # nothing shared between the ranks of the host, as with the peers
                ours[f"zero.cpp {name}stage 3, private"] = ([*command, "--private"], {})
    return selected(arguments, dict(in_turn(peers, ours)))


def selected(arguments, found):
    """Those whose name contains one of --only's words."""
    words = arguments.only.split(",") if arguments.only else [""]
    return {name: case for name, case in found.items() if any(word in name for word in words)}


def in_turn(peers, ours):
    """A case of ours after each of the peers', so that what is compared lies close together in time."""
    for pair in itertools.zip_longest(peers.items(), ours.items()):
        yield from (case for case in pair if case is not None)


def run(command, extra_environment, limit_s):
    """The record that a command prints, with the seconds from its start to the first step; or None and the reason."""
    began = time.time()
    try:
        done = subprocess.run(command, env={**os.environ, **extra_environment}, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"took longer than {limit_s} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        return None, said[-1][:300] if said else f"ended with {done.returncode}"
    record = json.loads(lines[-1])
    record["start_s"] = round(record.pop("first_step_at") - began, 3)
    return record, ""


def run_undisturbed(command, extra_environment, limit_s):
    """As run(); again while others took too much of the machine meanwhile. Of the tries the least disturbed one."""
    best, problem = None, ""
    for _ in range(MOST_TRIES):
        machine.wait_until_quiet()
        record, problem = run(command, extra_environment, limit_s)
        if record is None:
            return best, problem
        if best is None or record["other_cpu"] < best["other_cpu"]:
            best = record
        if best["other_cpu"] <= MOST_OTHER_CPU:
            break
        print(f"others used {record['other_cpu']} cores meanwhile: {record['step_s']} s a step, once more", file=sys.stderr, flush=True)
    return best, problem


def earlier(path, work):
    """The runs of rounds before this call. Only figures of one machine and one piece of work belong together."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        found = json.load(file)
    if found["work"] != work or found["machine"] != machine.describe():
        sys.exit(f"steps.py: {path} is of other work or of another machine; leave --more out to replace it")
    return found["runs"]


def main():
    parser = argparse.ArgumentParser(prog="steps.py")
    parser.add_argument("--zero", required=True)
    parser.add_argument("--peers", default="")
    parser.add_argument("--set", default="gpt2-bf16", help="of " + ", ".join(SETS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--more", action="store_true", help="add rounds to those that the file holds")
    parser.add_argument("--limit-s", type=int, default=300)
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--only", default="", help="cases whose name contains one of these words")
    parser.add_argument("--check", action="store_true", help="only look whether the arguments are right")
    parser.add_argument("--said", default=" ".join(sys.argv), help="the command to record")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.set.split(",") if name not in SETS]
    if unknown:
        parser.error(f"unknown set {unknown[0]}; there are {', '.join(SETS)}")
    for name in arguments.set.split(","):
        if not cases(arguments, name):
            parser.error(f"no case of set {name} has a name with any of {arguments.only}")
    if arguments.check:
        return 0
    failed = False
    for name in arguments.set.split(","):
        work = [*SETS[name], *usual_of(name), "--steps", str(arguments.steps)]
        path = os.path.join(arguments.out, f"steps-{name}.json")
        runs = earlier(path, " ".join(work)) if arguments.more else []
        first = 1 + max((run["repeat"] for run in runs), default=-1)
        for repeat in range(first, first + arguments.repeats):
            for case, (command, extra) in cases(arguments, name).items():
                record, problem = run_undisturbed([*command, *work], extra, arguments.limit_s)
                if record is None:
                    failed = True
                    print(f"{name} round {repeat + 1}, {case}: FAILED, {problem}", file=sys.stderr, flush=True)
                    continue
                runs.append({"case": case, "repeat": repeat, **record})
                print(f"{name} round {repeat + 1}, {case}: {record['step_s']} s a step, "
                      f"{max(record['peak_rss_mib'])} MiB", file=sys.stderr, flush=True)
            # After every round: what was measured stays when the rest is interrupted.
            machine.save(path, arguments.said, {"set": name, "work": " ".join(work), "repeats": repeat + 1, "runs": runs})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
