#!/usr/bin/env python3
"""Records logits and gradients of small GPT-2, Llama and GPT-NeoX models from transformers.

    python3 -m venv VENV && VENV/bin/pip install torch==2.11.0 numpy transformers==5.23.0 safetensors
    VENV/bin/python tests/golden/make.py

writes models.json beside this file: for each model its config.json and the names and shapes of its tensors as
save_pretrained() wrote them, tokens, logits, the loss, and of every gradient its norm, its sum with numbers that both
sides know, and its first elements. Weights are not stored: they come from integer arithmetic that both sides do
exactly (tests/support/golden_gpt2.h is the other side).
"""

import json
import pathlib
import tempfile

import safetensors
import torch
import torch.nn.functional as F
from transformers import (GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig,
                          LlamaForCausalLM)

from make_gpt2_losses import scrambled, seed_of

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
# name: (model, configuration, batch, sequence); sizes that are no round numbers, and every option at least once.
CASES = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3), 2, 7),
    "gpt2-narrow": (GPT2LMHeadModel, GPT2Config(vocab_size=37, n_positions=9, n_embd=10, n_layer=1, n_head=5,
                                                layer_norm_epsilon=1e-3), 1, 9),
    "llama": (LlamaForCausalLM, LlamaConfig(vocab_size=61, hidden_size=24, intermediate_size=37, num_hidden_layers=2,
                                            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                                            rms_norm_eps=1e-5), 2, 9),
    "llama-scaled-tied": (LlamaForCausalLM,
                          LlamaConfig(vocab_size=43, hidden_size=15, intermediate_size=19, num_hidden_layers=2,
                                      num_attention_heads=3, num_key_value_heads=1, head_dim=10,
                                      max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=True,
                                      rope_parameters=LLAMA3), 1, 40),
    "llama-one-head": (LlamaForCausalLM, LlamaConfig(vocab_size=31, hidden_size=6, intermediate_size=11,
                                                     num_hidden_layers=1, num_attention_heads=1,
                                                     max_position_embeddings=8, rms_norm_eps=1e-2), 3, 5),
    "neox": (GPTNeoXForCausalLM, GPTNeoXConfig(vocab_size=61, hidden_size=48, intermediate_size=50,
                                               num_hidden_layers=2, num_attention_heads=3,
                                               max_position_embeddings=32), 2, 9),
    "neox-sequential": (GPTNeoXForCausalLM,
                        GPTNeoXConfig(vocab_size=43, hidden_size=24, intermediate_size=31, num_hidden_layers=2,
                                      num_attention_heads=2, max_position_embeddings=64, use_parallel_residual=False,
                                      hidden_act="gelu_fast", layer_norm_eps=1e-3,
                                      rope_parameters={"rope_type": "default", "rope_theta": 500.0,
                                                       "partial_rotary_factor": 0.5}), 1, 33),
    "neox-all-rotated": (GPTNeoXForCausalLM,
                         GPTNeoXConfig(vocab_size=31, hidden_size=12, intermediate_size=16, num_hidden_layers=1,
                                       num_attention_heads=2, max_position_embeddings=8,
                                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                                        "partial_rotary_factor": 1.0}), 3, 5),
}


def initial_value(name, shape):
    value = (scrambled(seed_of(name), shape.numel()) % 4096 - 2048).to(torch.float32) * 2.0**-13
    is_norm = "norm" in name or "ln_" in name
    return (value + 1 if is_norm and name.endswith(".weight") else value).view(shape)


def some_tokens(name, batch, sequence, vocab_size):
    return (scrambled(seed_of(name), batch * sequence) % vocab_size).view(batch, sequence)


def rounded(tensor):
    return [float(f"{x:.7g}") for x in tensor.detach().flatten().tolist()]


def gradient_record(name, gradient):
    known = (scrambled(seed_of("gradient." + name), gradient.numel()) % 2001 - 1000).double() / 1000
    return rounded(torch.stack([gradient.double().norm(), gradient.double().flatten() @ known])) + rounded(
        gradient.flatten()[:4])


def record(name, model_class, config, batch, sequence):
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    stored = {}
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        written = json.loads((pathlib.Path(directory) / "config.json").read_text())
        with safetensors.safe_open(pathlib.Path(directory) / "model.safetensors", "pt") as file:
            for key in file.keys():
                stored[key] = list(file.get_slice(key).get_shape())
    # In files the head of a GPT-NeoX has another name than in the model.
    in_files = {"lm_head.weight": "embed_out.weight"} if "embed_out.weight" in stored else {}
    parameters = {in_files.get(key, key): parameter for key, parameter in model.named_parameters()}
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(initial_value(key, parameter.shape))
    assert set(parameters) == set(stored), set(parameters) ^ set(stored)
    tokens = some_tokens(name + ".tokens", batch, sequence, config.vocab_size)
    targets = some_tokens(name + ".targets", batch, sequence, config.vocab_size)
    logits = model(tokens).logits
    loss = F.cross_entropy(logits.view(-1, config.vocab_size), targets.view(-1))
    loss.backward()
    return {"name": name, "config": written, "tensors": stored, "batch": batch, "sequence": sequence,
            "loss": rounded(loss)[0], "logits": rounded(logits),
            "gradients": {key: gradient_record(key, p.grad) for key, p in parameters.items()}}


def main():
    torch.manual_seed(0)
    cases = [record(name, *case) for name, case in CASES.items()]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (HERE / "models.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
