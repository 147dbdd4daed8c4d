#!/usr/bin/env python3
"""Simulated steps beside measured ones: measures this machine's description, simulates, measures the same steps, and
prints a table. Both run on LibTorch's operators; ranks keep parameters of their own, as those of virtual devices do.

Usage: simulated.py [--zero PROGRAM] [--models tiny,gpt2] [--ranks 1,2] [--stages 0,3] [--dtypes fp32,bf16] [--steps N]
"""
import argparse
import itertools
import json
import subprocess
import tempfile
from pathlib import Path


def run(*command):
    return json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", default=Path(__file__).parents[1] / "build/release/zero")
    for name, default in (("models", "tiny,gpt2"), ("ranks", "1,2"), ("stages", "0,3"), ("dtypes", "fp32,bf16")):
        parser.add_argument("--" + name, default=default, type=lambda text: text.split(","))
    parser.add_argument("--steps", default=6)
    parser.add_argument("--seq", default=256)
    return parser.parse_args()


def main():
    given = arguments()
    print("| model | dtype | stage | ranks | measured ms | simulated ms | simulated / measured |\n|---|---|---|---|---|---|---|")
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in given.ranks:
            # Ranks that share the memory of a machine are slower than one alone, so each number has its own.
            description = Path(folder) / f"{ranks}.json"
            description.write_text(json.dumps(run(given.zero, "bench", "device", "--ranks", ranks)))
            for model, dtype, stage in itertools.product(given.models, given.dtypes, given.stages):
                step = [given.zero, "bench", "step", "--json", "--operators", "libtorch", "--private", "--model", model,
                        "--dtype", dtype, "--stage", stage, "--ranks", ranks, "--seq", given.seq]
                simulated = run(*step, "--steps", 4, "--device", f"virtual:{description}")["simulated_step_s"]
                # The fastest, as a description has the fastest of each kernel.
                measured = run(*step, "--steps", given.steps)["step_s_min"]
                errors.append(simulated / measured - 1)
                print(f"| {model} | {dtype} | {stage} | {ranks} | {1e3 * measured:.1f} | {1e3 * simulated:.1f} | "
                      f"{simulated / measured:.2f} |", flush=True)
    print(f"\nlargest error {100 * max(map(abs, errors)):.0f} %")


if __name__ == "__main__":
    main()
