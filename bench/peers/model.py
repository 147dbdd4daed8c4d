"""GPT-2 of plain PyTorch modules, the same operators as `zero bench step --plain`."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 50257
SHAPES = {  # layers, width, heads
    "tiny": (2, 128, 4),
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.fc_in = nn.Linear(width, 4 * width)
        self.fc_out = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, sequence, _ = x.shape
        parts = self.qkv(self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (p.view(batch, sequence, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, sequence, -1))
        return x + self.fc_out(F.gelu(self.fc_in(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, name, context):
        super().__init__()
        layers, width, heads = SHAPES[name]
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for key, parameter in self.named_parameters():
            if key.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                writes_residual = key.endswith(("proj.weight", "fc_out.weight"))
                nn.init.normal_(parameter, std=0.02 * ((2 * layers) ** -0.5 if writes_residual else 1.0))

    def embed(self, tokens):
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.view(-1))
