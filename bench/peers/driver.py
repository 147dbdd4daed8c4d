"""What the peers' drivers share: command line, ranks, timed steps, one line of JSON with the fields of `zero bench step --json`.

A driver calls main(peer, modes, build); build(arguments, model) gives step(micro_batches) -> this rank's mean loss. Ranks that
share layers or a pipeline, (pp, dp, tp) slowest first, get the same micro-batches; of a pipeline's the last stage's loss counts.
"""
import argparse
import json
import os
import socket
import statistics
import tempfile
import time


def parse(peer, modes):
    parser = argparse.ArgumentParser(prog=peer)
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--model", choices=["tiny", "gpt2", "gpt2-medium"], default="gpt2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0, help="of a rank; 0: cores / ranks")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8, help="the warm-up among them")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share layers")
    parser.add_argument("--pipeline", type=int, default=1, help="ranks of a pipeline")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: a device a rank, by NCCL")
    parser.add_argument("--compile", action="store_true", help="torch.compile of every block")
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // arguments.ranks)
    if arguments.ranks % (arguments.tensor * arguments.pipeline):
        parser.error(f"{arguments.ranks} ranks are no multiple of those that --tensor and --pipeline ask for")
    arguments.data_ranks = arguments.ranks // (arguments.tensor * arguments.pipeline)
    return arguments


def mebibytes(path, key):
    with open(path) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024


def busy_s():
    """CPU seconds that all cores together have spent not idle."""
    with open("/proc/stat") as file:
        ticks = [int(value) for value in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def run_rank(rank, arguments, peer, build, port, out):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments.ranks),
                      LOCAL_WORLD_SIZE=str(arguments.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist
    from model import VOCABULARY, Gpt2

    torch.set_num_threads(arguments.threads)
    on_cuda = arguments.device == "cuda"
    if on_cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_cuda else "gloo", rank=rank, world_size=arguments.ranks)
    base_mib = mebibytes("/proc/self/status", "VmRSS")
    torch.manual_seed(arguments.seed)
    model = Gpt2(arguments.model, max(1024, arguments.seq))
    parameters = sum(p.numel() for p in model.parameters())
    model.to(arguments.device)
    if arguments.compile:
        for block in model.blocks:
            block.compile()
    step = build(arguments, model)
    del model

    def all_done():
        if on_cuda:
            torch.cuda.synchronize()
        dist.barrier()
        if on_cuda:
            torch.cuda.synchronize()

    generator = torch.Generator().manual_seed(arguments.seed + 1 + rank // arguments.tensor % arguments.data_ranks)
    shape = (arguments.batch, arguments.seq + 1)
    seconds, losses, pss_mib, first_step_at = [], [], 0.0, 0.0
    for index in range(arguments.steps):
        if index == arguments.warmup:
            cpu, busy, began = time.process_time(), busy_s(), time.perf_counter()
        draws = [torch.randint(VOCABULARY, shape, generator=generator) for _ in range(arguments.grad_accum)]
        micro_batches = [tuple(part.contiguous().to(arguments.device) for part in (d[:, :-1], d[:, 1:])) for d in draws]
        all_done()
        first_step_at = first_step_at or time.time()
        start = time.perf_counter()
        loss = torch.as_tensor(float(step(micro_batches)), device=arguments.device)
        all_done()
        seconds.append(time.perf_counter() - start)
        dist.all_reduce(loss)
        losses.append(float(loss) / (arguments.data_ranks * arguments.tensor))
        pss_mib = max(pss_mib, mebibytes("/proc/self/smaps_rollup", "Pss:"))
    shared_mib = mebibytes("/proc/self/smaps_rollup", "Rss:") - mebibytes("/proc/self/smaps_rollup", "Pss:")
    cpu, busy, wall = time.process_time() - cpu, busy_s() - busy, time.perf_counter() - began
    figures = [None] * arguments.ranks
    dist.all_gather_object(figures, (mebibytes("/proc/self/status", "VmHWM"), pss_mib, base_mib, cpu, shared_mib))
    if rank == 0:
        timed = seconds[arguments.warmup:]
        step_s = statistics.median(timed)
        tokens = arguments.data_ranks * arguments.batch * arguments.seq * arguments.grad_accum
        record = {
            "peer": peer, "mode": arguments.mode, "model": arguments.model, "params": parameters,
            "ranks": arguments.ranks, "threads": arguments.threads, "batch": arguments.batch, "seq": arguments.seq,
            "dtype": arguments.dtype, "ckpt": 0, "grad_accum": arguments.grad_accum,
            "tensor": arguments.tensor, "pipeline": arguments.pipeline, "steps": arguments.steps,
            "step_s": round(step_s, 4), "step_s_min": round(min(timed), 4), "tokens_per_s": round(tokens / step_s, 1),
            "peak_rss_mib": [round(f[0]) for f in figures], "pss_mib": [round(f[1]) for f in figures],
            "peak_pss_mib": [round(f[0] - f[4]) for f in figures],
            "base_rss_mib": [round(f[2]) for f in figures],
            "other_cpu": round(max(0.0, busy - sum(f[3] for f in figures)) / wall, 2),
            "first_step_at": round(first_step_at, 3),
            "loss_first": round(losses[0], 5), "loss": round(losses[-1], 5)}
        if on_cuda:
            record.update(device="cuda", gpu=torch.cuda.get_device_name(), torch=torch.__version__, compiled=arguments.compile,
                          device_peak_bytes=torch.cuda.max_memory_allocated())
        with open(out, "w") as file:
            json.dump(record, file)
    dist.barrier()
    dist.destroy_process_group()


def main(peer, modes, build):
    arguments = parse(peer, modes)
    # Read when torch is imported, so before that.
    os.environ.update(OMP_NUM_THREADS=str(arguments.threads), MKL_NUM_THREADS=str(arguments.threads),
                      GLOO_SOCKET_IFNAME="lo", DS_ACCELERATOR="cpu", TOKENIZERS_PARALLELISM="false")
    import torch.multiprocessing as multiprocessing
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        # The libraries log to stdout, which is for one line of JSON.
        stdout = os.dup(1)
        os.dup2(2, 1)
        multiprocessing.spawn(run_rank, (arguments, peer, build, port, out.name), nprocs=arguments.ranks)
        os.dup2(stdout, 1)
        print(out.read(), flush=True)
