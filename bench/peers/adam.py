"""AdamW with bf16 parameters and gradients and an fp32 master, as optimizer.cpp times ours: DeepSpeedCPUAdam between two casts,
and PyTorch's fused AdamW between the same. usage: adam.py THREADS

Prints a line of JSON a flow: milliseconds for 32 Mi elements, the median of 9 after 2.
"""
import json
import os
import statistics
import sys
import time

threads = sys.argv[1]
os.environ.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads, DS_ACCELERATOR="cpu")
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

torch.set_num_threads(int(threads))
COUNT = 32 << 20
SETTINGS = dict(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)


def measure(name, make):
    parameter = torch.full((COUNT,), 0.02, dtype=torch.bfloat16)
    gradient = torch.full((COUNT,), 0.01, dtype=torch.bfloat16)
    master = torch.nn.Parameter(parameter.float())
    optimizer = make([master])
    times = []
    for _ in range(11):
        start = time.perf_counter()
        master.grad = gradient.float()
        optimizer.step()
        parameter.copy_(master.data)
        times.append(time.perf_counter() - start)
    print(json.dumps({"name": name, "threads": int(threads), "ms": round(statistics.median(times[2:]) * 1e3, 2)}), flush=True)


measure("DeepSpeedCPUAdam", lambda p: DeepSpeedCPUAdam(p, adamw_mode=True, **SETTINGS))
measure("torch fused AdamW", lambda p: torch.optim.AdamW(p, fused=True, **SETTINGS))
