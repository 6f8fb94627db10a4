r"""A small GPT-2 of Hugging Face with random weights, on generated sums; nothing is downloaded.

    normscope lr examples/gpt2.py:build --data examples/gpt2.py:batches --loss model
    normscope curvature examples/gpt2.py:build --data examples/gpt2.py:batches --loss model \
        --kind ggn

A batch is what the model takes by name. With labels the model returns its own loss, which
``--loss model`` uses. Needs ``pip install 'normscope[transformers]'``.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

SYMBOLS = "0123456789+=;"
LENGTH = 24  # tokens in a sequence
SEQUENCES = 16  # in a batch


def build() -> nn.Module:
    """The model; the command seeds torch before it calls this."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 4}
    ends = {"bos_token_id": 12, "eos_token_id": 12}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(SYMBOLS), **sizes, **ends))


def batches(count: int = 8) -> list[dict[str, Tensor]]:
    """Sequences of sums such as ``27+5=32;``, one token for each character."""
    draw = random.Random(0)
    text = ""
    while len(text) < count * SEQUENCES * LENGTH:
        one, other = draw.randrange(100), draw.randrange(100)
        text += f"{one}+{other}={one + other};"
    tokens = torch.tensor([SYMBOLS.index(each) for each in text[: count * SEQUENCES * LENGTH]])
    batches = tokens.view(count, SEQUENCES, LENGTH)
    return [{"input_ids": each, "labels": each} for each in batches]
