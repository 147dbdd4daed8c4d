"""FSDP2, a shard group a block: zero3 reshards after forward, zero2 does not."""
import torch
from driver import main


def build(arguments, model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh(arguments.device, (arguments.ranks,))
    policy = MixedPrecisionPolicy()
    if arguments.dtype == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=arguments.mode == "zero3", mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(micro_batches):
        total = 0.0
        for tokens, targets in micro_batches:
            loss = model(tokens, targets) / len(micro_batches)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


if __name__ == "__main__":
    main("torch-fsdp2", ["zero3", "zero2"], build)
