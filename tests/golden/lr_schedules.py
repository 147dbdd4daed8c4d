#!/usr/bin/env python3
"""Writes lr_schedules.json: the rates that DeepSpeed's own scheduler classes give to the optimizer, step by step.

usage: lr_schedules.py DEEPSPEED_SOURCE > lr_schedules.json

DEEPSPEED_SOURCE is the unpacked source distribution (`pip download --no-deps --no-binary :all: deepspeed==0.19.8`).
Its lr_schedules.py is run as it stands; only `torch` and DeepSpeed's logger are replaced, so that neither is needed.
Row k holds what the optimizer sees in its step k: the scheduler is stepped after the optimizer, as the engine does.
"""
import json
import logging
import pathlib
import re
import sys
import types

STEPS = 64
CASES = [
    ("WarmupLR", {}),
    ("WarmupLR", {"warmup_max_lr": 0.01, "warmup_num_steps": 10}),
    ("WarmupLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 0.01, "warmup_num_steps": 1}),
    ("WarmupLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 0.01, "warmup_num_steps": 20, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 50, "warmup_num_steps": 10}),
    ("WarmupDecayLR", {"total_num_steps": 60, "warmup_min_lr": 1e-5, "warmup_max_lr": 3e-4, "warmup_num_steps": 7,
                       "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 10, "warmup_num_steps": 20}),
    ("WarmupCosineLR", {"total_num_steps": 50, "warmup_num_steps": 10}),
    ("WarmupCosineLR", {"total_num_steps": 55, "warmup_num_steps": 5, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.05,
                        "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 8, "warmup_num_steps": 16}),
    ("LRRangeTest", {"lr_range_test_step_size": 5}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 0.5,
                     "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 20}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 10, "cycle_second_step_size": 15,
                  "decay_step_size": 5, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 12, "cycle_second_step_size": 20,
                  "cycle_first_stair_count": 4, "cycle_second_stair_count": 5, "decay_step_size": 3,
                  "decay_lr_rate": 0.1, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}),
    ("OneCycle", {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 7, "cycle_first_stair_count": 3,
                  "cycle_momentum": False, "decay_step_size": 4}),
]


class Optimizer:
    def __init__(self, lr):
        self.defaults = {"lr": lr, "betas": (0.9, 0.999)}
        self.param_groups = [dict(self.defaults)]


def load_schedules(source):
    torch = types.ModuleType("torch")
    torch.tensor, torch.is_tensor = None, lambda value: False
    torch.optim = types.ModuleType("torch.optim")
    torch.optim.Optimizer = Optimizer
    utils = types.ModuleType("deepspeed.utils")
    utils.logger = logging.getLogger("deepspeed")
    utils.logger.setLevel(logging.ERROR)
    sys.modules.update({"torch": torch, "torch.optim": torch.optim, "deepspeed": types.ModuleType("deepspeed"),
                        "deepspeed.utils": utils})
    module = types.ModuleType("lr_schedules")
    path = pathlib.Path(source) / "deepspeed" / "runtime" / "lr_schedules.py"
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def record(schedules, kind, params, base_lr=0.004):
    optimizer = Optimizer(base_lr)
    scheduler = getattr(schedules, kind)(optimizer, **params)
    rates, betas = [], []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        betas.append(list(optimizer.param_groups[0]["betas"]))
        scheduler.step()
    case = {"type": kind, "params": params, "base_lr": base_lr, "lr": rates}
    if kind == "OneCycle" and params.get("cycle_momentum", True):
        case["betas"] = betas
    return case


def main():
    source = pathlib.Path(sys.argv[1])
    version = re.sub(r"^.*-", "", source.resolve().name)
    schedules = load_schedules(source)
    cases = [record(schedules, kind, params) for kind, params in CASES]
    rows = ",\n".join(json.dumps(case) for case in cases)
    print('{"made_by": "lr_schedules.py", "deepspeed": "%s", "cases": [\n%s\n]}' % (version, rows))


if __name__ == "__main__":
    main()
