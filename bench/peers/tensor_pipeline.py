"""Ranks that share layers and stages of a pipeline, data-parallel ranks beside them.

dtensor: PyTorch's own parts: parallelize_module and loss_parallel, 1F1B of torch.distributed.pipelining, FSDP2 without resharding.
megatron: the layout of Shoeybi et al. (arXiv 1909.08053) in plain modules over Gloo: an all-reduce behind each rowwise layer and
before each columnwise one, an embedding cut by its rows, gathered logits, 1F1B by sends and receives, all-reduced gradients.

bf16 is autocast over fp32 parameters, of FSDP2 its mixed precision.
"""
import contextlib

import torch
import torch.nn.functional as F
from driver import main
from model import VOCABULARY


def cut_queries_with_keys(model, parts):
    """Reorders the fused rows so that one of `parts` equal pieces holds queries, keys and values of its heads."""
    for block in model.blocks:
        block.heads //= parts
        for parameter in (block.qkv.weight, block.qkv.bias):
            pieces = parameter.data.view(3, parts, -1, *parameter.shape[1:])
            parameter.data = pieces.transpose(0, 1).reshape(parameter.shape)


def stage_blocks(model, sequence, stages):
    """How many blocks each stage has: the head counts as what it computes of a token, the slowest stage has the least."""
    width, count = model.wte.weight.shape[1], len(model.blocks)
    block, head = 24 * width * width + 4 * sequence * width, 2 * VOCABULARY * width
    best, counts = None, None

    def place(left, before):
        nonlocal best, counts
        if len(before) + 1 == stages:
            found = [*before, left]
            costs = [n * block for n in found]
            costs[-1] += head
            rank = (max(costs), sum(c * c for c in costs))
            if best is None or rank < best:
                best, counts = rank, found
            return
        for n in range(left + 1):
            place(left - n, [*before, n])

    place(count, [])
    return counts


class Stage(torch.nn.Module):
    """Of the model what one rank of the pipeline computes: tokens or activations in, activations out."""

    def __init__(self, model, counts, index):
        super().__init__()
        begin = sum(counts[:index])
        self.is_first, self.is_last = index == 0, index + 1 == len(counts)
        self.model = model
        model.blocks = torch.nn.ModuleList(model.blocks[begin:begin + counts[index]])
        if not self.is_first:
            model.wpe = None
            if not self.is_last:
                model.wte = None
        if not self.is_last:
            model.ln_f = None

    def forward(self, x):
        if self.is_first:
            x = self.model.embed(x)
        for block in self.model.blocks:
            x = block(x)
        return self.model.ln_f(x) if self.is_last else x


def autocast(arguments):
    return torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.dtype == "bf16")


def clip(named_parameters, share_of, local_of):
    """By the norm over all ranks: each adds the squares of what it holds, times share_of what others hold as well."""
    gradients = [(share_of(name, p), local_of(p.grad)) for name, p in named_parameters if p.grad is not None]
    squares = torch.zeros((), dtype=torch.float32)
    norms = torch._foreach_norm([g for _, g in gradients])
    for (share, _), norm in zip(gradients, norms):
        squares += share * norm.float() ** 2
    torch.distributed.all_reduce(squares)
    scale = min(1.0, 1.0 / (float(squares) ** 0.5 + 1e-6))
    torch._foreach_mul_([g for _, g in gradients], scale)


def add_up_tied(parameter, mesh, arguments, local_of):
    """The embedding's gradients of the first and the last stage."""
    if arguments.pipeline > 1:
        torch.distributed.all_reduce(local_of(parameter.grad), group=mesh["pp"].get_group())


def adamw(parameters):
    """A group for each kind of tensor: fused kernels take one at a time."""
    groups = {}
    for parameter in parameters:
        groups.setdefault(str(getattr(parameter, "device_mesh", "")), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def build_dtensor(arguments, model, mesh):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
    shares, stages, place = arguments.tensor > 1, arguments.pipeline, mesh["pp"].get_local_rank()
    stage = Stage(model, stage_blocks(model, arguments.seq, stages), place)
    cut = set()
    if shares:
        cut_queries_with_keys(model, arguments.tensor)
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"qkv": ColwiseParallel(), "proj": RowwiseParallel(),
                                                   "fc_in": ColwiseParallel(), "fc_out": RowwiseParallel()})
        if model.wte is not None:
            parallelize_module(model, mesh["tp"], {"wte": RowwiseParallel(input_layouts=Replicate())})
        cut = {name for name, p in stage.named_parameters() if isinstance(p, DTensor) and p.placements[0].is_shard()}

    def loss_of(x, targets):
        if shares:
            x = DTensor.from_local(x, mesh["tp"], [Replicate()], run_check=False)
        with autocast(arguments):
            logits = F.linear(x, model.wte.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))

    if arguments.data_ranks > 1:
        policy = MixedPrecisionPolicy()
        if arguments.dtype == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for module in [*model.blocks, stage]:
            fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False, mp_policy=policy)
    casts = contextlib.nullcontext if arguments.data_ranks > 1 else lambda: autocast(arguments)
    optimizer = adamw(stage.parameters())
    schedule = None
    if stages > 1:
        schedule = Schedule1F1B(PipelineStage(stage, place, stages, torch.device("cpu"), group=mesh["pp"].get_group()),
                                arguments.grad_accum, loss_fn=loss_of)

    def local_of(gradient):
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def share_of(name, _):
        tied_once = 0.0 if stages > 1 and stage.is_last and name.endswith("wte.weight") else 1.0
        ranks = arguments.tensor if name not in cut else 1
        return tied_once / ranks  # along "dp" each has a shard of its own

    def run(micro_batches):
        if schedule is None:
            total = 0.0
            for index, (tokens, targets) in enumerate(micro_batches):
                if arguments.data_ranks > 1:
                    stage.set_requires_gradient_sync(index + 1 == len(micro_batches))
                with casts():
                    x = stage(tokens)
                loss = loss_of(x, targets) / len(micro_batches)
                loss.backward()
                total += float(local_of(loss.detach()))
            return total
        tokens, targets = (torch.cat(parts) for parts in zip(*micro_batches))
        losses = []
        with casts():
            schedule.step(*([tokens] if stage.is_first else []), target=targets if stage.is_last else None,
                          losses=losses if stage.is_last else None)
        return sum(float(local_of(loss.detach())) for loss in losses) / len(micro_batches)

    def step(micro_batches):
        with loss_parallel() if shares else contextlib.nullcontext():
            total = run(micro_batches)
        for parameter in stage.parameters():
            if isinstance(parameter, DTensor) and parameter.grad.placements != parameter.placements:  # an embedding's are whole
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
        if model.wte is not None:
            add_up_tied(model.wte.weight, mesh, arguments, local_of)
        clip(stage.named_parameters(), share_of, local_of)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


class Enter(torch.autograd.Function):
    """As it is; gradients are added up over the ranks that share a layer."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        torch.distributed.all_reduce(gradient, group=context.group)
        return gradient, None


class Leave(torch.autograd.Function):
    """The sum over the ranks that share a layer; gradients as they are."""

    @staticmethod
    def forward(context, x, group):
        x = x.contiguous()
        torch.distributed.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Gather(torch.autograd.Function):
    """Columns of all ranks side by side; each takes its part of the gradient."""

    @staticmethod
    def forward(context, x, group, sizes, place):
        context.begin, context.size = sum(sizes[:place]), sizes[place]
        most = max(sizes)
        padded = F.pad(x, (0, most - x.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        torch.distributed.all_gather(parts, padded, group=group)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes)], dim=-1)

    @staticmethod
    def backward(context, gradient):
        return gradient[..., context.begin:context.begin + context.size].contiguous(), None, None, None


def forward_in_parts(block, group):
    def forward(x):
        batch, sequence, _ = x.shape
        parts = block.qkv(Enter.apply(block.ln_1(x), group)).chunk(3, dim=2)
        q, k, v = (p.view(batch, sequence, block.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, sequence, -1)
        x = x + Leave.apply(F.linear(y, block.proj.weight), group) + block.proj.bias
        y = F.gelu(block.fc_in(Enter.apply(block.ln_2(x), group)), approximate="tanh")
        return x + Leave.apply(F.linear(y, block.fc_out.weight), group) + block.fc_out.bias

    return forward


def cut_layers(model, group, parts, place):
    """Leaves this rank's part of every layer."""
    def keep(parameter, dim):
        parameter.data = parameter.data.tensor_split(parts, dim)[place].clone()

    cut_queries_with_keys(model, parts)
    for block in model.blocks:
        for parameter in (block.qkv.weight, block.qkv.bias, block.fc_in.weight, block.fc_in.bias):
            keep(parameter, 0)
        for parameter in (block.proj.weight, block.fc_out.weight):
            keep(parameter, 1)
        block.forward = forward_in_parts(block, group)
    if model.wte is not None:
        sizes = [len(part) for part in torch.empty(VOCABULARY).tensor_split(parts)]
        begin = sum(sizes[:place])
        keep(model.wte.weight, 0)

        def lookup(tokens):
            outside = (tokens < begin) | (tokens >= begin + sizes[place])
            rows = F.embedding((tokens - begin).masked_fill(outside, 0), model.wte.weight)
            return Leave.apply(rows.masked_fill(outside.unsqueeze(-1), 0.0), group)

        model.wte.forward = lookup
        model.head = lambda x: Gather.apply(F.linear(Enter.apply(x, group), model.wte.weight), group, sizes, place)
    return {"qkv.weight", "qkv.bias", "fc_in.weight", "fc_in.bias", "proj.weight", "fc_out.weight", "wte.weight"}


def one_forward_one_backward(stage, place, stages, group, micro_batches, shape, dtype, loss_of):
    """Sends wait for their receives, so neighbours' exchanges are posted together."""
    import torch.distributed as dist
    before, after = (dist.get_global_rank(group, place + d) if 0 <= place + d < stages else None for d in (-1, 1))
    under_way, losses = [], []

    def exchange(sends, receives):
        works = [dist.P2POp(dist.isend, t, to, group) for t, to in sends]
        found = [torch.empty(shape, dtype=dtype) for _ in receives]
        works += [dist.P2POp(dist.irecv, t, source, group) for t, source in zip(found, receives)]
        for work in dist.batch_isend_irecv(works) if works else []:
            work.wait()
        return found

    def forward(index, x):
        tokens, targets = micro_batches[index]
        if before is None:
            x = tokens
        else:
            x.requires_grad_()
        y = stage(x)
        if after is None:
            y = loss_of(y, targets) / len(micro_batches)
            losses.append(float(y.detach()))
        under_way.append((x, y))
        return y

    def backward(gradient):
        x, y = under_way.pop(0)
        y.backward(gradient)
        return None if before is None else x.grad

    def input_of(index):
        return exchange([], [before])[0] if before is not None and index < len(micro_batches) else None

    count = len(micro_batches)
    warm_up = min(stages - 1 - place, count)
    for index in range(warm_up):
        exchange([(forward(index, input_of(index)).detach(), after)], [])
    x = input_of(warm_up)
    for index in range(warm_up, count):
        y = forward(index, x)
        gradient = None if after is None else exchange([(y.detach(), after)], [after])[0]
        back = backward(gradient)
        sends = [] if before is None else [(back, before)]
        receives = [before] if before is not None and index + 1 < count else []
        x = (exchange(sends, receives) or [None])[0]
    for _ in range(warm_up):
        back = backward(exchange([], [after])[0])
        if before is not None:
            exchange([(back, before)], [])
    return sum(losses)


def build_megatron(arguments, model, mesh):
    place, stages, width = mesh["pp"].get_local_rank(), arguments.pipeline, model.wte.weight.shape[1]
    stage = Stage(model, stage_blocks(model, arguments.seq, stages), place)
    cut = set()
    if arguments.tensor > 1:
        cut = cut_layers(model, mesh["tp"].get_group(), arguments.tensor, mesh["tp"].get_local_rank())
    optimizer = adamw(stage.parameters())
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    shape = (arguments.batch, arguments.seq, width)

    def computed(x):
        with autocast(arguments):
            y = stage(x)
        return y if stage.is_last else y.to(dtype)

    def loss_of(x, targets):
        with autocast(arguments):
            logits = model.head(x) if arguments.tensor > 1 else F.linear(x, model.wte.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))

    def reduce_gradients():
        """Mean over data-parallel ranks, 16 MiB at a time."""
        waiting, size = [], 0
        gradients = [p.grad for p in stage.parameters()]
        for index, gradient in enumerate(gradients):
            waiting.append(gradient)
            size += gradient.numel()
            if size < 4 << 20 and index + 1 < len(gradients):
                continue
            flat = torch.cat([g.flatten() for g in waiting]) / arguments.data_ranks
            torch.distributed.all_reduce(flat, group=mesh["dp"].get_group())
            for g, part in zip(waiting, flat.split([g.numel() for g in waiting])):
                g.copy_(part.view_as(g))
            waiting, size = [], 0

    def share_of(name, _):
        if stages > 1 and stage.is_last and name.endswith("wte.weight"):
            return 0.0
        is_cut = any(name.endswith(end) for end in cut)
        return 1.0 / ((1 if is_cut else arguments.tensor) * arguments.data_ranks)

    def step(micro_batches):
        total = one_forward_one_backward(computed, place, stages, mesh["pp"].get_group(), micro_batches, shape, dtype, loss_of)
        if arguments.data_ranks > 1:
            reduce_gradients()
        if model.wte is not None:
            add_up_tied(model.wte.weight, mesh, arguments, lambda g: g)
        clip(stage.named_parameters(), share_of, lambda g: g)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def build(arguments, model):
    from torch.distributed.device_mesh import init_device_mesh
    if arguments.pipeline > 2:
        raise SystemExit("tensor_pipeline.py: gradients of the tied embedding are added up over at most two stages")
    mesh = init_device_mesh(arguments.device, (arguments.pipeline, arguments.data_ranks, arguments.tensor),
                            mesh_dim_names=("pp", "dp", "tp"))
    return {"dtensor": build_dtensor, "megatron": build_megatron}[arguments.mode](arguments, model, mesh)


if __name__ == "__main__":
    main("torch-tensor-pipeline", ["dtensor", "megatron"], build)
