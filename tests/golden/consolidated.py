#!/usr/bin/env python3
"""Opens what `zero consolidate` made with transformers and compares its loss with `zero eval`'s. Not part of ./dev test: run it in
a virtual environment with torch, transformers and numpy.

usage: consolidated.py ZERO RUN DATA.tokens OUT
ZERO: the program; RUN: a run directory; OUT: a directory to make. Every format and type is made there and compared.
"""
import json
import math
import pathlib
import struct
import subprocess
import sys

import numpy
import torch
import transformers


def tokens_of(path):
    data = open(path, "rb").read()
    width, count = struct.unpack_from("<I", data, 16)[0], struct.unpack_from("<Q", data, 24)[0]
    return numpy.frombuffer(data, "<u2" if width == 2 else "<u4", count, 64).astype(numpy.int64)


def loss_of(model, tokens, length):
    """Mean over every whole sample of `length` tokens, as `zero eval` takes them."""
    samples = (len(tokens) - 1) // length
    total = 0.0
    with torch.no_grad():
        for i in range(samples):
            piece = torch.from_numpy(tokens[i * length : i * length + length + 1])
            logits = model(piece[None, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, piece[1:]).item()
    return total / samples


def main():
    zero, run, data, out = sys.argv[1:]
    config = json.load(open(f"{run}/config.json"))
    said = json.loads(subprocess.run([zero, "eval", run, "--data", data, "--json"], check=True, capture_output=True, text=True).stdout)
    tokens = tokens_of(data)
    for name, arguments, tolerance in [
        ("safetensors", [], 1e-5),
        ("sharded", ["--max-shard-size", "20kB"], 1e-5),
        ("pytorch", ["-f", "pytorch"], 1e-5),
        ("pytorch-sharded-bf16", ["-f", "pytorch", "--dtype", "bf16", "--max-shard-size", "20kB"], 1e-2),
        ("fp16", ["--dtype", "fp16"], 1e-3),
    ]:
        directory = f"{out}/{name}"
        subprocess.run([zero, "consolidate", run, directory, *arguments], check=True, stdout=subprocess.DEVNULL)
        for file in pathlib.Path(directory).glob("*.bin"):
            torch.load(file, weights_only=True)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        loss = loss_of(model.eval(), tokens, config["data"]["sequence_length"])
        assert math.isclose(loss, said["loss"], rel_tol=tolerance), (name, loss, said)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        ids = tokenizer("The clocks were striking", add_special_tokens=False)["input_ids"]
        print(f"{name}: loss {loss:.7f}, zero eval {said['loss']:.7f}; {len(ids)} tokens, {tokenizer.decode(ids)!r}")


main()
