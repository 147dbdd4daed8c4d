"""Exports a model of Python's for example_torchscript: python torchscript.py FILE"""
import sys

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.jit.script(Net()).save(sys.argv[1])
