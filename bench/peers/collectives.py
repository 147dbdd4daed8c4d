"""PyTorch's Gloo: reduce-scatter and all-gather between two ranks of this host, sizes of the full tensor as in collectives.cpp.

Prints a line of JSON each: the median milliseconds of 7 after 2, from barrier to barrier.
"""
import json
import os
import socket
import statistics
import time

os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def run_rank(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for kind in ("reduce_scatter", "all_gather"):
        for dtype, word in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
            for mebibytes in (1, 4, 16, 64, 256):
                full = torch.ones((mebibytes << 20) // dtype.itemsize, dtype=dtype)
                part = torch.ones(full.numel() // 2, dtype=dtype)
                times = []
                for _ in range(9):
                    dist.barrier()
                    start = time.perf_counter()
                    if kind == "reduce_scatter":
                        dist.reduce_scatter_tensor(part, full)
                    else:
                        dist.all_gather_into_tensor(full, part)
                    dist.barrier()
                    times.append(time.perf_counter() - start)
                if rank == 0:
                    ms = round(statistics.median(times[2:]) * 1e3, 3)
                    print(json.dumps({"name": f"{kind}/{word}/MiB:{mebibytes}", "ms": ms}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        free_port = listener.getsockname()[1]
    multiprocessing.spawn(run_rank, (free_port,), nprocs=2)
