#!/usr/bin/env python3
"""Predicted steps beside measured ones: measures this machine as a cluster of one host, predicts steps of 1 to 8 local
ranks with `zero plan --cluster`, measures the same steps with `zero train`, and prints a table.

Ranks that share a machine are slower than one alone, so each number of ranks has a description of its own. Its rates are
measured, not data sheets', but for one efficiency: what of a product's rate all operators of a step reach is fitted to the
first case of each number of ranks, and taken over to the others.

Usage: cluster.py [--zero PROGRAM] [--ranks 1,2,4,8] [--meshes 1x1,2x1,1x2] [--stages 0,3] [--steps N]
                  [--rounds N] [--write DIR]
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARM_UP = 2
SMALL = {"type": "gpt2", "vocab_size": 8192, "context_length": 256, "layers": 6, "width": 384, "heads": 6}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", default=ROOT / "build/release/zero", type=Path)
    whole = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--ranks", default=[1, 2, 4, 8], type=whole)
    parser.add_argument("--stages", default=[0, 3], type=whole)
    parser.add_argument("--meshes", default=["1x1", "2x1", "1x2"], type=lambda text: text.split(","),
                        help="ranks along tp x pp; those that do not divide the ranks are left out")
    parser.add_argument("--steps", default=8, type=int, help="of each case, of which the first two are not counted")
    parser.add_argument("--rounds", default=2, type=int, help="all cases of a number of ranks in turn; the fastest round counts")
    parser.add_argument("--batch", default=8, type=int, help="sequences a step, over all ranks")
    parser.add_argument("--write", type=Path, help="directory for the descriptions of this machine")
    return parser.parse_args()


def described(given, ranks):
    """This machine with so many ranks on it, from what `zero bench` measures of kernels and collectives."""
    device = json.loads(run(given.zero, "bench", "device", "--ranks", ranks))
    return {
        "name": f"this machine, {ranks} ranks",
        "source": "zero bench device --ranks " + str(ranks),
        "hosts": 1,
        "devices_per_host": ranks,
        "memory_bytes": device["memory_bytes"] // ranks,
        "flops_per_s": {k: v for k, v in device["flops_per_s"].items() if k in ("f32", "bf16", "f16")},
        "memory_bytes_per_s": device["memory_bytes_per_s"],
        "within_host": device["within_host"],
        "between_hosts": device["between_hosts"],
        "network_cards": 1,
        "shares_memory": True,
        "cores_per_host": len(os.sched_getaffinity(0)),
    }


def configuration(folder, given, stage, tensor, pipeline, ranks):
    data_ranks = ranks // (tensor * pipeline)
    micro_batches = min(4, given.batch // data_ranks) if pipeline > 1 else 1
    return {
        "train_batch_size": given.batch,
        "gradient_accumulation_steps": micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "model": SMALL,
        "data": {"train": str(folder / "tokens"), "tokenizer": str(folder / "tokenizer"), "sequence_length": SMALL["context_length"]},
        "parallel": {"tensor": tensor, "sequence": tensor > 1, "pipeline": pipeline},
        "run": {"directory": str(folder / "run"), "steps": given.steps, "seed": 1},
    }


def tokens(folder, given):
    """What is trained does not matter: numbers as bytes, by GPT-2's spelling of these and without merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))] + ["<|endoftext|>"]
    words = folder / "tokenizer"
    words.mkdir()
    (words / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(spelled)}))
    (words / "merges.txt").write_text("#version: 0.2\n")
    text = folder / "text.txt"
    text.write_text(" ".join(str(i * i % 9973) for i in range(100000)))
    run(given.zero, "tokenize", text, "--tokenizer", words, "--out", folder / "tokens")


def measured(folder, given, config, ranks):
    subprocess.run(["rm", "-rf", folder / "run"], check=True)
    run(given.zero, "train", config, "--ranks", ranks)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line["step_s"] for line in lines if "step_s" in line]
    return statistics.median(steps[WARM_UP:])


def predicted(given, config, description, path, compute=None):
    if compute is not None:
        description = dict(description, efficiency={"compute": compute})
    path.write_text(json.dumps(description, indent=2))
    return json.loads(run(given.zero, "plan", config, "--cluster", path, "--json"))["step_s"]


def fitted(given, config, description, path, target):
    """The efficiency at which the prediction is the measured step, by bisection."""
    low, high = 0.01, 1.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if predicted(given, config, description, path, middle) > target:
            low = middle
        else:
            high = middle
    return high


def cases_of(given, ranks):
    for mesh, stage in itertools.product(given.meshes, given.stages):
        tensor, pipeline = (int(word) for word in mesh.split("x"))
        if ranks % (tensor * pipeline) == 0 and SMALL["heads"] % tensor == 0:
            yield mesh, tensor, pipeline, stage


def measure_in_turn(given, folder, ranks):
    """Of each case its configuration and its fastest round: what else the machine does only adds."""
    cases = list(cases_of(given, ranks))
    configs, rounds = {}, {case: [] for case in cases}
    for case in cases:
        configs[case] = folder / f"config-{ranks}-{case[0]}-{case[3]}.json"
        configs[case].write_text(json.dumps(configuration(folder, given, case[3], *case[1:3], ranks)))
    for _ in range(given.rounds):
        for case in cases:
            rounds[case].append(measured(folder, given, configs[case], ranks))
    return [(case, configs[case], min(rounds[case])) for case in cases]


def main():
    given = arguments()
    print("| ranks | tp x pp | stage | measured ms | predicted ms | predicted / measured |\n|---|---|---|---|---|---|")
    errors = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens(folder, given)
        for ranks in given.ranks:
            description = described(given, ranks)
            path = folder / f"{ranks}.json"
            efficiency = None
            for (mesh, _, _, stage), config, seconds in measure_in_turn(given, folder, ranks):
                is_fitted = efficiency is None
                if is_fitted:
                    efficiency = fitted(given, config, description, path, seconds)
                found = predicted(given, config, description, path, efficiency)
                note = f" (fitted: compute {efficiency:.2f})" if is_fitted else ""
                if not is_fitted:
                    errors.append(found / seconds - 1)
                print(f"| {ranks} | {mesh} | {stage} | {1e3 * seconds:.1f} | {1e3 * found:.1f} | "
                      f"{found / seconds:.2f}{note} |", flush=True)
            if given.write:
                given.write.mkdir(parents=True, exist_ok=True)
                (given.write / path.name).write_text(path.read_text())
    if errors:
        print(f"\nlargest error {100 * max(map(abs, errors)):.0f} % of {len(errors)} cases that nothing was fitted to")


if __name__ == "__main__":
    main()
