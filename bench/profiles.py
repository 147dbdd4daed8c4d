"""Where a step's time goes: samples of `perf record` by the kind of work, for the plain model and ours at stage 3.

usage: profiles.py --zero PROGRAM [--out DIR]

Two ranks of one thread, bf16, batch 1, 256 tokens. Writes DIR/profiles.json: percent of all samples after the start.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

import machine

HERE = os.path.dirname(os.path.abspath(__file__))
START_MS = "5000"
STEPS = "14"

# The first that matches a symbol. What oneDNN makes at run time has no symbol: its products.
KINDS = {
    "attention": "zero::attention",
    "matrix products": r"zero::product|gemm|dnnl|^0x",
    "gradient norm": "sums_of_streams|sums_of_squares",
    "optimizer": "zero::kernels",
    "gradients between ranks: packing and sums": "sum_bf16|sum_fp32|stream_bytes",
    "GELU": "gelu",
    "the head's loss": "scaled_exp|log_softmax|nll_loss|finz_expf",
    "layer norm": "LayerNorm|layer_norm|RowwiseMoments",
    "sums and adds": "sum_columns|outer_sum|add_kernel",
    "copies, casts and fills": "copy|cat_serial|fill_kernel|memset|memmove",
    "memory and page faults": "malloc|free|_int_|unlink_chunk|TrainingAllocator|clear_page|page_fault",
}
REST = "dispatch, autograd, waits and all else"


def kind_of(symbol):
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, symbol)), REST)


def shares(report):
    """kind -> percent, from lines of `perf report`: '12.34%  [.] symbol'"""
    result = dict.fromkeys([*KINDS, REST], 0.0)
    for line in report.splitlines():
        found = re.match(r"\s*(\d+\.\d+)%\s+\[.\]\s+(.*)", line)
        if found:
            result[kind_of(found[2])] += float(found[1])
    return {kind: round(share, 1) for kind, share in result.items()}


def profile(zero, options):
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        step = [zero, "bench", "step", "--stage", "3", "--ranks", "2", "--threads", "1", "--batch", "1", "--seq", "256", "--steps", STEPS,
                "--dtype", "bf16", *options]
        for command in (["perf", "record", "-D", START_MS, "-e", "cpu-clock", "-F", "499", "-o", data, *step],
                        ["perf", "report", "-i", data, "--no-children", "--sort", "sym", "--percent-limit", "0"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                sys.exit(f"profiles.py: {' '.join(command)} failed: {done.stderr.strip()[-300:]}")
        return shares(done.stdout)


def main():
    parser = argparse.ArgumentParser(prog="profiles.py")
    parser.add_argument("--zero", required=True)
    parser.add_argument("--out", default=os.path.join(HERE, "results"))
    parser.add_argument("--said", default=" ".join(sys.argv), help="the command to record")
    arguments = parser.parse_args()
    machine.wait_until_quiet()
    plain, ours = (profile(arguments.zero, options) for options in (["--plain"], []))
    rows = [{"kind": kind, "plain": plain[kind], "ours": ours[kind]} for kind in plain]
    machine.save(os.path.join(arguments.out, "profiles.json"), arguments.said, {"benchmarks": rows})


if __name__ == "__main__":
    main()
