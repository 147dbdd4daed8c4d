#!/usr/bin/env python3
"""Writes optimizer_rules.json: what optimizers of PyPI's packages make of two parameters in a few steps.

usage: optimizer_rules.py > optimizer_rules.json

Recorded with torch 2.11.0, pytorch_optimizer 4.1.0 and transformers 5.24.0 (`pip download --no-deps`). Values and gradients are whole
numbers over 2^15, so that the test draws the same; of the results every STRIDE-th element is kept.
"""
import importlib.metadata
import json

import torch
import pytorch_optimizer
import transformers

STEPS = 5
STRIDE = 7
SHAPES = {"matrix": (40, 50), "vector": (37,)}


def drawn(shape, number):
    count = torch.Size(shape).numel()
    values = [((i * 40503 + number * 30011 + i * i * 7) % 65536) / 32768 - 1 for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).view(shape)


def run(make):
    parameters = {name: torch.nn.Parameter(drawn(shape, 0)) for name, shape in SHAPES.items()}
    optimizers = make(parameters)
    for step in range(1, STEPS + 1):
        for parameter in parameters.values():
            parameter.grad = drawn(parameter.shape, step)
        for optimizer in optimizers:
            optimizer.step()
    return {name: parameter.detach().flatten()[::STRIDE].tolist() for name, parameter in parameters.items()}


def one(make):
    return lambda parameters: [make(list(parameters.values()))]


def unclamped(lamb):
    lamb.clamp = 1e9  # of a parameter's norm: 10 where nobody says otherwise
    return lamb


# The rule's name and hyperparameters in a configuration, and the same in its package.
CASES = [
    ("Adagrad", {"lr": 0.05}, one(lambda p: torch.optim.Adagrad(p, lr=0.05))),
    ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.02, "eps": 1e-6, "initial_accumulator_value": 0.5},
     one(lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.02, eps=1e-6,
                                       initial_accumulator_value=0.5))),
    ("LARS", {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, "trust_coefficient": 0.02},
     one(lambda p: pytorch_optimizer.LARS(p, lr=0.5, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02))),
    ("LARS", {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
     one(lambda p: pytorch_optimizer.LARS(p, lr=0.5, momentum=0.8, weight_decay=0.01, nesterov=True))),
    ("LARS", {"lr": 0.5, "momentum": 0.0}, one(lambda p: pytorch_optimizer.LARS(p, lr=0.5, momentum=0.0))),
    ("LAMB", {"lr": 0.02, "weight_decay": 0.1, "eps": 1e-8, "bias_correction": False, "max_coeff": 1e9, "min_coeff": 0},
     one(lambda p: unclamped(pytorch_optimizer.Lamb(p, lr=0.02, weight_decay=0.1, eps=1e-8, weight_decouple=False,
                                                    adam_debias=True)))),
    ("Lion", {"lr": 0.01, "betas": [0.8, 0.95], "weight_decay": 0.1},
     one(lambda p: pytorch_optimizer.Lion(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1))),
    ("Muon", {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1, "betas": [0.8, 0.95], "adamw_lr_scale": 0.5},
     lambda p: [torch.optim.Muon([p["matrix"]], lr=0.02, momentum=0.9, weight_decay=0.1),
                torch.optim.AdamW([p["vector"]], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)]),
    ("Muon", {"lr": 0.02, "nesterov": False, "match_rms_adamw": True, "weight_decay": 0, "betas": [0.8, 0.95]},
     lambda p: [torch.optim.Muon([p["matrix"]], lr=0.02, nesterov=False, weight_decay=0,
                                 adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW([p["vector"]], lr=0.02, betas=(0.8, 0.95), weight_decay=0)]),
    ("Adafactor", {}, one(lambda p: transformers.Adafactor(p))),
    ("Adafactor", {"warmup_init": True, "beta1": 0.9, "weight_decay": 0.1, "clip_threshold": 0.5},
     one(lambda p: transformers.Adafactor(p, warmup_init=True, beta1=0.9, weight_decay=0.1, clip_threshold=0.5))),
    ("Adafactor", {"lr": 0.02, "relative_step": False, "scale_parameter": False, "eps": 1e-5, "decay_rate": 0.6},
     one(lambda p: transformers.Adafactor(p, lr=0.02, relative_step=False, scale_parameter=False, eps=(1e-5, 1e-3),
                                          decay_rate=-0.6))),
    ("Adafactor", {"torch_form": True, "eps": torch.finfo(torch.float32).eps},
     one(lambda p: torch.optim.Adafactor(p))),
    ("Adafactor", {"torch_form": True, "lr": 0.8, "eps": 0.5, "min_rms": 0.7, "clip_threshold": 1.1, "decay_rate": 0.5,
                   "weight_decay": 0.05},
     one(lambda p: torch.optim.Adafactor(p, lr=0.8, eps=(0.5, 0.7), d=1.1, beta2_decay=-0.5, weight_decay=0.05))),
    ("AdamW", {"lr": 0.02, "betas": [0.8, 0.95], "weight_decay": 0.1},
     one(lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1))),
]


def main():
    torch.set_num_threads(1)
    cases = [{"rule": rule, "params": params, **run(make)} for rule, params, make in CASES]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "pytorch_optimizer", "transformers")}
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(f'{{"versions": {json.dumps(versions)}, "steps": {STEPS}, "stride": {STRIDE}, "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
