"""Small random transformers models of many architectures, unmodified: three steps under the engine on the ranks of this job, and the
same three steps by torch.optim in one process on all ranks' samples. Prints "NAME DIFFERENCE of CHANGE" on rank 0; ends with 1 where one differs.

usage: zero launch --ranks 2 -- python models.py [--stage N] [--lazy] [NAME...]
"""
import argparse
import sys

import torch
import transformers as hf
import zero

TOKENS, WIDTH, LENGTH, BATCH = 96, 32, 12, 2  # of a rank


def words(generator, ranks):
    ids = torch.randint(3, TOKENS, (BATCH * ranks, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def classes(generator, ranks):
    return {"input_ids": torch.randint(3, TOKENS, (BATCH * ranks, LENGTH), generator=generator),
            "labels": torch.randint(0, 2, (BATCH * ranks,), generator=generator)}


def pairs(generator, ranks):
    return {"input_ids": torch.randint(3, TOKENS, (BATCH * ranks, LENGTH), generator=generator),
            "labels": torch.randint(3, TOKENS, (BATCH * ranks, 7), generator=generator)}


def images(generator, ranks):
    return {"pixel_values": torch.randn(BATCH * ranks, 3, 32, 32, generator=generator),
            "labels": torch.randint(0, 2, (BATCH * ranks,), generator=generator)}


COMMON = dict(vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=64, attention_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2)
BERT = dict(COMMON, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
MODELS = {
    "gpt2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=TOKENS, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64,
                                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), words),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**COMMON, num_key_value_heads=2)), words),
    "gpt_neox": (lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**COMMON, hidden_dropout=0.0)), words),
    "qwen2": (lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**COMMON, num_key_value_heads=2)), words),
    "mistral": (lambda: hf.MistralForCausalLM(hf.MistralConfig(**COMMON, num_key_value_heads=2)), words),
    "mixtral": (lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**COMMON, num_key_value_heads=2, num_local_experts=4)), words),
    "opt": (lambda: hf.OPTForCausalLM(hf.OPTConfig(vocab_size=TOKENS, hidden_size=WIDTH, ffn_dim=64, num_hidden_layers=2,
                                                   num_attention_heads=4, max_position_embeddings=64, dropout=0.0, word_embed_proj_dim=WIDTH,
                                                   pad_token_id=0, bos_token_id=1, eos_token_id=2)), words),
    "bloom": (lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=TOKENS, hidden_size=WIDTH, n_layer=2, n_head=4, hidden_dropout=0.0,
                                                         attention_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2)), words),
    "phi": (lambda: hf.PhiForCausalLM(hf.PhiConfig(**COMMON)), words),
    "mamba": (lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=TOKENS, hidden_size=WIDTH, num_hidden_layers=2, state_size=8,
                                                         pad_token_id=0, bos_token_id=1, eos_token_id=2)), words),
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**BERT)), classes),
    "roberta": (lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**BERT)), classes),
    "deberta_v2": (lambda: hf.DebertaV2ForSequenceClassification(hf.DebertaV2Config(**BERT, relative_attention=True, position_buckets=8,
                                                                                    pos_att_type=["p2c", "c2p"], pooler_dropout=0.0)), classes),
    "t5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=TOKENS, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                                                             dropout_rate=0.0, decoder_start_token_id=0)), pairs),
    "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2,
                                                              num_attention_heads=4, image_size=32, patch_size=8,
                                                              hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)), images),
}
RATE, DECAY, STEPS, SEED = 1e-3, 0.1, 3, 7


def batches(make, ranks):
    generator = torch.Generator().manual_seed(SEED)
    return [make(generator, ranks) for _ in range(STEPS)]


def serial(build, make, ranks):
    """Values after the steps in one process, and how far the farthest went. The mean of the ranks' losses, since a rank's samples make one."""
    torch.manual_seed(SEED)
    model = build().train()
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    # The engine's AdamW is LibTorch's, and a sign that rounding decides would make a whole step of difference: eps is large.
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, eps=1e-4)
    for batch in batches(make, ranks):
        loss = sum(model(**{k: v[r * BATCH:(r + 1) * BATCH] for k, v in batch.items()}).loss for r in range(ranks)) / ranks
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    values = {name: value.detach() for name, value in model.named_parameters()}
    return values, max((values[name] - start[name]).abs().max().item() for name in values)


def sharded(build, make, mesh, stage, is_lazy):
    torch.manual_seed(SEED)
    model = (zero.lazily(build) if is_lazy else build()).train()
    engine = zero.Engine(model, zero.AdamW(lr=RATE, weight_decay=DECAY, eps=1e-4), mesh, stage=stage, cpu_operators=False)
    for batch in batches(make, mesh.size):
        mine = {k: v[mesh.rank * BATCH:(mesh.rank + 1) * BATCH] for k, v in batch.items()}
        engine.backward(engine.forward(lambda: model(**mine).loss))
        engine.step()
    return engine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=sorted(MODELS))
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--lazy", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hf.logging.set_verbosity_error()
    mesh = zero.Mesh.from_environment()
    failed = []
    for name in arguments.names:
        build, make = MODELS[name]
        engine = sharded(build, make, mesh, arguments.stage, arguments.lazy)
        expected, moved = serial(build, make, mesh.size)
        worst = max((engine.full_parameter(key) - value).abs().max().item() for key, value in expected.items())
        if mesh.rank == 0:
            print(f"{name} {worst:.2e} of {moved:.2e}", flush=True)
        if not (worst < 1e-6 and moved > 1e-3):
            failed.append(name)
        del engine
    if failed:
        sys.exit(f"differ from one process: {', '.join(failed)}")


main()
