#!/usr/bin/env python3
"""Records the golden losses of a small GPT-2 from PyTorch itself, and the parameter list of Hugging Face's GPT-2.

    python3 -m venv VENV && VENV/bin/pip install torch==2.11.0 numpy transformers
    VENV/bin/python tests/golden/make_gpt2_losses.py

writes gpt2_losses.json and gpt2_parameters.json beside this file. The model here is plain PyTorch and shares no code
with the library; it is checked against transformers' GPT2LMHeadModel before anything is written. Weights and tokens
come from integer arithmetic that both sides do exactly (tests/support/golden_gpt2.h is the other side), so no weights
are stored.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
SHAPE = {"vocab_size": 97, "context_length": 32, "layers": 2, "width": 32, "heads": 4}
STEPS = 10
# 36 divides by every ranks x accumulation of the sharding tests (1..4 ranks, 1 or 3 micro-batches).
GLOBAL_BATCHES = [4, 12, 36]
CLIP = 0.8  # some steps of the AdamW runs are clipped, some are not

# --- integers that both sides compute exactly ---------------------------------------------------------------------
PRIME = 2**31 - 1


def seed_of(name):
    """FNV-1a over the name's bytes, 32 bits."""
    value = 2166136261
    for byte in name.encode():
        value = ((value ^ byte) * 16777619) % 2**32
    return value


def scrambled(seed, count):
    """`count` integers in [0, PRIME): three rounds of squaring and adding, each product below 2^62."""
    x = (torch.arange(count, dtype=torch.int64) + seed % PRIME) % PRIME
    for increment in (seed % 65521 + 1, 12345, 777):
        x = (x * x + increment) % PRIME
    return x


def initial_value(name, shape):
    """Multiples of 2^-14 in [-1/8, 1/8), plus 1 for the gain of a norm: exact in fp32."""
    value = (scrambled(seed_of(name), math.prod(shape)) % 4096 - 2048).to(torch.float32) / 16384
    if "ln_" in name and name.endswith(".weight"):
        value = value + 1
    return value.reshape(shape)


def batch_of(step, global_batch):
    """Rows of a sequence with a rule in it (5 t + 3, sometimes broken), [global_batch, context + 1]."""
    length, vocab = SHAPE["context_length"] + 1, SHAPE["vocab_size"]
    noise = scrambled(seed_of(f"tokens.{step}"), global_batch * length).reshape(global_batch, length).tolist()
    rows = []
    for random in noise:
        row = [random[0] % vocab]
        for r in random[1:]:
            row.append(r % vocab if r % 8 == 0 else (5 * row[-1] + 3) % vocab)
        rows.append(row)
    return torch.tensor(rows)


# --- the model --------------------------------------------------------------------------------------------------------
def parameter_shapes():
    w = SHAPE["width"]
    shapes = {"wte.weight": [SHAPE["vocab_size"], w], "wpe.weight": [SHAPE["context_length"], w]}
    for i in range(SHAPE["layers"]):
        for name, shape in [("ln_1", [w]), ("attn.c_attn", [w, 3 * w]), ("attn.c_proj", [w, w]), ("ln_2", [w]),
                            ("mlp.c_fc", [w, 4 * w]), ("mlp.c_proj", [4 * w, w])]:
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = shape[-1:]
    return shapes | {"ln_f.weight": [w], "ln_f.bias": [w]}


def initial_parameters():
    return {name: initial_value(name, shape) for name, shape in parameter_shapes().items()}


def logits_of(p, tokens):
    batch, length = tokens.shape
    width, heads = SHAPE["width"], SHAPE["heads"]

    def norm(name, x):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    def linear(name, x):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def as_heads(t):
        return t.view(batch, length, heads, width // heads).transpose(1, 2)

    x = p["wte.weight"][tokens] + p["wpe.weight"][:length]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(SHAPE["layers"]):
        block = f"h.{i}"
        q, k, v = map(as_heads, linear(block + ".attn.c_attn", norm(block + ".ln_1", x)).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1) / math.sqrt(width // heads)).masked_fill(future, -math.inf)
        attended = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + linear(block + ".attn.c_proj", attended)
        hidden = F.gelu(linear(block + ".mlp.c_fc", norm(block + ".ln_2", x)), approximate="tanh")
        x = x + linear(block + ".mlp.c_proj", hidden)
    return norm("ln_f", x) @ p["wte.weight"].T


def loss_of(p, rows):
    logits = logits_of(p, rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


# --- what is recorded -------------------------------------------------------------------------------------------------
OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
}


def record(optimizer, global_batch):
    kind, settings = OPTIMIZERS[optimizer]
    parameters = {name: torch.nn.Parameter(value) for name, value in initial_parameters().items()}
    stepper = kind(parameters.values(), **settings)
    losses, norms = [], []
    for step in range(STEPS):
        loss = loss_of(parameters, batch_of(step, global_batch))
        stepper.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP).item())
        stepper.step()
        losses.append(loss.item())
    return {"optimizer": optimizer, **settings, "global_batch": global_batch, "clip": CLIP, "losses": losses,
            "gradient_norms": norms}


def check_against_transformers():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=SHAPE["vocab_size"], n_positions=SHAPE["context_length"], n_embd=SHAPE["width"],
                        n_layer=SHAPE["layers"], n_head=SHAPE["heads"], bos_token_id=None, eos_token_id=None,
                        attn_implementation="eager")
    model = GPT2LMHeadModel(config).eval()
    parameters = initial_parameters()
    missing, unexpected = model.transformer.load_state_dict(parameters, strict=False)
    assert not unexpected and all("attn.bias" in name for name in missing), (missing, unexpected)
    model.tie_weights()
    tokens = batch_of(0, 4)[:, :-1]
    with torch.no_grad():
        difference = (model(tokens).logits - logits_of(parameters, tokens)).abs().max().item()
    assert difference < 1e-5, difference
    print(f"transformers' GPT2LMHeadModel agrees: largest difference of a logit {difference:.1e}")


def published_parameters():
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    return {name.removeprefix("transformer."): list(p.shape) for name, p in model.named_parameters()}


def main():
    torch.set_num_threads(1)
    check_against_transformers()
    runs = [record("adamw", batch) for batch in GLOBAL_BATCHES]
    runs += [record("adam", 12), record("sgd", 12)]
    golden = {"torch": torch.__version__, "shape": SHAPE, "steps": STEPS, "runs": runs}
    (HERE / "gpt2_losses.json").write_text(json.dumps(golden, indent=1) + "\n")
    lines = ",\n".join(f" {json.dumps(name)}: {shape}" for name, shape in published_parameters().items())
    (HERE / "gpt2_parameters.json").write_text("{\n" + lines + "\n}\n")
    for run in runs:
        print(run["optimizer"], run["global_batch"], ["%.5f" % x for x in run["losses"]],
              ["%.3f" % x for x in run["gradient_norms"]])


if __name__ == "__main__":
    main()
