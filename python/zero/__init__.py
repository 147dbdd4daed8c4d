"""zero.cpp for Python modules: ZeRO stages 0 to 3 of any torch.nn.Module, without a wrapper or a policy.

    mesh = zero.Mesh.from_environment()
    model = zero.lazily(lambda: MyModel())
    engine = zero.Engine(model, zero.AdamW(lr=3e-4), mesh, stage=3, dtype=torch.bfloat16)
    loss = engine.forward(lambda: model(tokens, labels=tokens).loss)
    engine.backward(loss)
    engine.step()

What each call does is said in the C++ headers that the wheel has in zero/include/zero (engine.h, mesh.h, lazy.h).
"""
import functools
import json
import os

import torch  # noqa: F401  first: the library is linked to its LibTorch

from . import _zero
from ._zero import Engine, EngineStats, Error, GatherScope, LocalValues, Mesh, StepResult, lazily, materialize

__version__ = "@ZERO_VERSION@"


def engine_from_config(module, config, mesh=None):
    """An engine as a configuration says: a dict or a file with DeepSpeed's keys (docs/configuration.md)."""
    if isinstance(config, (str, os.PathLike)):
        with open(config, encoding="utf-8") as file:
            text = file.read()
    else:
        text = json.dumps(config)
    return Engine.from_json(module, text, mesh)


# zero.AdamW(lr=...), zero.LAMB(...): a function for each rule of the library's table.
for _name in _zero.optimizer_names():
    globals()[_name] = functools.partial(_zero.optimizer, _name)

__all__ = ["Engine", "EngineStats", "Error", "GatherScope", "LocalValues", "Mesh", "StepResult", "engine_from_config", "lazily",
           "materialize", *_zero.optimizer_names()]
