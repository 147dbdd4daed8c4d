#!/usr/bin/env python3
"""Writes loss_scale.json: the scales of DeepSpeed's DynamicLossScaler and torch's GradScaler, step by step.

usage: loss_scale.py DEEPSPEED_SOURCE > loss_scale.json

DEEPSPEED_SOURCE is the unpacked source distribution (`pip download --no-deps --no-binary :all: deepspeed==0.19.8`). Its
class is run as it stands, without what the file imports. torch is 2.11.0. `scales` has the scale before step 0, 1, ...;
the overflows are at the steps named; `raises` is the step at which DeepSpeed gives up, null where it does not.
"""
import json
import logging
import pathlib
import re
import sys

import torch

CASES = [
    ("DeepSpeed", 2400, {"initial_scale_power": 16}, []),
    ("DeepSpeed", 60, {"initial_scale_power": 16, "window": 10}, [3, 4, 5, 20, 21, 22, 40]),
    ("DeepSpeed", 60, {"initial_scale_power": 8, "window": 7, "hysteresis": 3}, [0, 2, 4, 6, 8, 30, 31, 32, 33]),
    ("DeepSpeed", 60, {"initial_scale_power": 8, "window": 7, "hysteresis": 3, "consecutive_hysteresis": True},
     [0, 2, 4, 6, 8, 30, 31, 32, 33, 34]),
    ("DeepSpeed", 40, {"initial_scale_power": 3, "window": 5, "hysteresis": 1, "min_scale": 2}, [1, 2, 12, 13]),
    ("DeepSpeed", 40, {"initial_scale_power": 2, "window": 5, "hysteresis": 1}, [1, 2, 3, 4]),
    ("DeepSpeed", 40, {"initial_scale_power": 2, "window": 1, "hysteresis": 2}, [5, 6, 7]),
    ("GradScaler", 4100, {"initial_scale_power": 16}, [7]),
    ("GradScaler", 60, {"initial_scale_power": 10, "window": 5}, [0, 4, 5, 11, 30, 31, 50]),
]


def deepspeed_class(source):
    text = next(pathlib.Path(source).rglob("runtime/fp16/loss_scaler.py")).read_text()
    classes = re.search(r"class LossScalerBase.*?(?=^# Although loss)", text, re.S | re.M).group(0)

    class Alone:
        @staticmethod
        def get_rank():
            return 1

    scope = {"torch": torch, "dist": Alone, "logger": logging.getLogger("quiet")}
    exec(re.sub(r"class LossScalerBase\(.*?\)", "class LossScalerBase(object)", classes), scope)
    return scope["DynamicLossScaler"]


def of_deepspeed(make, steps, options, overflows):
    scaler = make(init_scale=2.0**options["initial_scale_power"], scale_window=options.get("window", 1000),
                  min_scale=options.get("min_scale", 1), delayed_shift=options.get("hysteresis", 2),
                  consecutive_hysteresis=options.get("consecutive_hysteresis", False))
    scales = []
    for step in range(steps):
        scales.append(scaler.cur_scale)
        try:
            scaler.update_scale(step in overflows)
        except Exception:
            return scales, step
    return scales, None


def of_grad_scaler(steps, options, overflows):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**options["initial_scale_power"],
                                  growth_interval=options.get("window", 2000))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scales = []
    for step in range(steps):
        scales.append(scaler.get_scale())
        weight.grad = scaler.scale(torch.tensor([float("inf") if step in overflows else 1.0]))
        scaler.step(optimizer)
        scaler.update()
    return scales, None


def main():
    make = deepspeed_class(sys.argv[1])
    lines = []
    for rule, steps, options, overflows in CASES:
        if rule == "DeepSpeed":
            scales, raises = of_deepspeed(make, steps, options, overflows)
        else:
            scales, raises = of_grad_scaler(steps, options, overflows)
        # Where it changes, the step and the new scale.
        changes = [[i, s] for i, s in enumerate(scales) if i == 0 or s != scales[i - 1]]
        lines.append(json.dumps({"rule": rule, "steps": len(scales), "options": options, "overflows": overflows,
                                 "changes": changes, "raises": raises}))
    print('{"versions": {"deepspeed": "0.19.8", "torch": "2.11.0"}, "cases": [\n' + ",\n".join(lines) + "\n]}")


if __name__ == "__main__":
    main()
