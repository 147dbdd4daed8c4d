"""Records tests/golden/traced_models.tar.xz: small random transformers models of many architectures as TorchScript traces that give a
loss, and traced_models.json: what each loses in three steps of AdamW in one process on the samples of two ranks.

usage: python traced_models.py OUT_DIR   (made with torch 2.11.0 and transformers 5.24.0)
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers as hf

WORDS, WIDTH, LENGTH, BATCH, RANKS, STEPS = 64, 16, 8, 2, 2, 3
LR, EPS, DECAY = 1e-3, 1e-4, 0.1

SMALL = dict(vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
             max_position_embeddings=32, attention_dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2)
BERT = dict(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)
IMAGE = dict(hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)

# name: (model, what goes in)
MODELS = {
    "gpt2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0.0,
                                                      embd_pdrop=0.0, attn_pdrop=0.0)), "words"),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=1)), "words"),
    "gpt_neox": (lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, hidden_dropout=0.0)), "words"),
    "gptj": (lambda: hf.GPTJForCausalLM(hf.GPTJConfig(vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32, rotary_dim=4,
                                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), "words"),
    "qwen2": (lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, num_key_value_heads=1)), "words"),
    "mistral": (lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, num_key_value_heads=1)), "words"),
    "gemma": (lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8)), "words"),
    "opt": (lambda: hf.OPTForCausalLM(hf.OPTConfig(vocab_size=WORDS, hidden_size=WIDTH, ffn_dim=32, num_hidden_layers=2,
                                                   num_attention_heads=2, max_position_embeddings=32, dropout=0.0,
                                                   word_embed_proj_dim=WIDTH, pad_token_id=0, bos_token_id=1, eos_token_id=2)), "words"),
    "falcon": (lambda: hf.FalconForCausalLM(hf.FalconConfig(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
                                                            hidden_dropout=0.0, attention_dropout=0.0, pad_token_id=0, bos_token_id=1,
                                                            eos_token_id=2)), "words"),
    "phi": (lambda: hf.PhiForCausalLM(hf.PhiConfig(**SMALL)), "words"),
    "mamba": (lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2, state_size=4,
                                                         pad_token_id=0, bos_token_id=1, eos_token_id=2)), "words"),
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**BERT)), "classes"),
    "roberta": (lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**BERT)), "classes"),
    "electra": (lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**BERT, embedding_size=8)), "classes"),
    "albert": (lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**{**BERT, "classifier_dropout_prob": 0.0}, embedding_size=8)),
               "classes"),
    "distilbert": (lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(vocab_size=WORDS, dim=WIDTH, hidden_dim=32, n_layers=2,
                                                                                      n_heads=2, max_position_embeddings=32, dropout=0.0,
                                                                                      attention_dropout=0.0, seq_classif_dropout=0.0)),
                   "classes"),
    "deberta_v2": (lambda: hf.DebertaV2ForSequenceClassification(hf.DebertaV2Config(**BERT, relative_attention=True, position_buckets=4,
                                                                                    pos_att_type=["p2c", "c2p"], pooler_dropout=0.0)),
                   "classes"),
    "t5": (lambda: hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=WORDS, d_model=WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
                                                             dropout_rate=0.0, decoder_start_token_id=0)), "words"),
    "bart": (lambda: hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=WORDS, d_model=WIDTH, encoder_layers=2, decoder_layers=2,
                                                                   encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                                                                   decoder_ffn_dim=32, max_position_embeddings=32, dropout=0.0)), "words"),
    "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**IMAGE)), "images"),
    "deit": (lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGE)), "images"),
    "resnet": (lambda: hf.ResNetForImageClassification(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                                                       layer_type="basic")), "images"),
    "convnext": (lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(patch_size=2, num_stages=2, hidden_sizes=[8, 16], depths=[1, 1],
                                                                             drop_path_rate=0.0)), "images"),
    "swin": (lambda: hf.SwinForImageClassification(hf.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2],
                                                                 window_size=4, drop_path_rate=0.0)), "images"),
}


def inputs(kind, step, rank):
    """Made by arithmetic that C++ does too (tests/traced_models_test.cpp): ids and classes of whole numbers, pixels of sixteenths."""
    first = 1000 * step + 100 * rank
    if kind == "images":
        count = BATCH * 3 * 16 * 16
        pixels = ((torch.arange(count) * 7 + first) % 33 - 16).float() / 16
        return pixels.view(BATCH, 3, 16, 16), (torch.arange(BATCH) + rank + step) % 2
    ids = 3 + (torch.arange(BATCH * LENGTH) * torch.arange(BATCH * LENGTH) * 5 + first) % (WORDS - 3)
    ids = ids.view(BATCH, LENGTH)
    return ids, ids.clone() if kind == "words" else (torch.arange(BATCH) + rank + step) % 2


class Loss(torch.nn.Module):
    def __init__(self, model, kind):
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, x, labels):
        name = "pixel_values" if self.kind == "images" else "input_ids"
        return self.model(**{name: x, "labels": labels}).loss


def serial_losses(path, kind):
    """The losses, and the sum of the squares of all parameters after them."""
    model = torch.jit.load(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=EPS, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        loss = sum(model(*inputs(kind, step, rank)) for rank in range(RANKS)) / RANKS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, sum(p.detach().double().square().sum().item() for p in model.parameters())


def main():
    out = sys.argv[1]
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    torch.jit.set_fusion_strategy([("STATIC", 0)])
    torch.set_num_threads(1)
    recorded = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (build, kind) in MODELS.items():
            torch.manual_seed(11)
            model = build().train()
            model.config.use_cache = False
            path = os.path.join(folder, name + ".pt")
            with torch.no_grad():
                traced = torch.jit.trace(Loss(model, kind).train(), inputs(kind, 0, 0), check_trace=False)
            torch.jit.save(traced, path)
            losses, squares = serial_losses(path, kind)
            recorded[name] = {"kind": kind, "losses": losses, "sum_of_squares": squares}
            print(name, losses, os.path.getsize(path), flush=True)
        names = sorted(name + ".pt" for name in MODELS)
        archive = os.path.join(out, "traced_models.tar.xz")
        subprocess.run(["tar", "-C", folder, "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-cJf", archive, *names], check=True)
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    with open(os.path.join(out, "traced_models.json"), "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "transformers": hf.__version__, "archive_sha256": digest, "models": recorded}, file, indent=1)
        file.write("\n")


main()
