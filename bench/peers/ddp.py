"""DistributedDataParallel with AdamW (ddp) or ZeroRedundancyOptimizer (zero1); `alone` is forward and backward without either.

bf16 is autocast over fp32 parameters, as DDP is used; `alone` has bf16 parameters and throws its gradients away.
"""
import contextlib

import torch
from driver import main


def build_alone(arguments, model):
    if arguments.dtype == "bf16":
        model.to(torch.bfloat16)

    def step(micro_batches):
        total = 0.0
        for tokens, targets in micro_batches:
            loss = model(tokens, targets)
            loss.backward()
            model.zero_grad(set_to_none=True)
            total += loss.detach() / len(micro_batches)
        return total

    return step


def build(arguments, model):
    if arguments.mode == "alone":
        return build_alone(arguments, model)
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    network = DistributedDataParallel(model, gradient_as_bucket_view=True)
    settings = dict(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if arguments.mode == "ddp":
        optimizer = torch.optim.AdamW(network.parameters(), **settings)
    else:
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW, **settings)

    def step(micro_batches):
        total = 0.0
        for index, (tokens, targets) in enumerate(micro_batches):
            last = index + 1 == len(micro_batches)
            with contextlib.nullcontext() if last else network.no_sync():
                with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.dtype == "bf16"):
                    loss = network(tokens, targets) / len(micro_batches)
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


if __name__ == "__main__":
    main("torch-ddp", ["ddp", "zero1", "alone"], build)
