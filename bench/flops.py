"""Forward and backward of GPT-2 124M against the machine's rate for the same matrix products, in alternation.

usage: flops.py --zero PROGRAM --gemm PROGRAM [--repeats N] [--out DIR]

Two ranks of one thread, batch 1, 256 tokens. Writes DIR/flops.json: a row a dtype and round with the products' rate (gemm.cpp)
and the seconds of forward and backward of the plain model and of ours.
"""
import argparse
import json
import os
import subprocess
import sys

import machine

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = "2"
MANY, FEW = ["--steps", "6"], ["--steps", "2", "--warmup", "1"]
SLOW_S = 20  # LibTorch's products in bf16 take minutes where the processor has no instructions for them


def lines(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"flops.py: {' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(prog="flops.py")
    parser.add_argument("--zero", required=True)
    parser.add_argument("--gemm", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--said", default=" ".join(sys.argv), help="the command to record")
    arguments = parser.parse_args()
    rows = []
    for repeat in range(arguments.repeats):
        machine.wait_until_quiet()
        for row in lines([arguments.zero, "launch", "--lead", "--ranks", RANKS, "--", arguments.gemm]):
            for name, option, slow in (("plain_s", ["--plain"], row["gemm_s"] > SLOW_S), ("ours_s", [], False)):
                step = [arguments.zero, "bench", "step", "--alone", "--json", "--ranks", RANKS, "--threads", "1", "--batch", "1",
                        "--seq", "256", *(FEW if slow else MANY), "--dtype", row["dtype"], *option]
                row[name] = lines(step)[-1]["step_s"]
            rows.append({"repeat": repeat, **row})
            print(f"flops round {repeat + 1}, {row['dtype']}: products {row['gemm_s']:.3f} s, forward and backward plain "
                  f"{row['plain_s']} s, ours {row['ours_s']} s", file=sys.stderr, flush=True)
        # After every round: what was measured stays when the rest is interrupted.
        machine.save(os.path.join(arguments.out, "flops.json"), arguments.said, {"benchmarks": rows})


if __name__ == "__main__":
    main()
