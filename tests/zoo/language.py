"""Language models, called with a dictionary and returning an object with loss and logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, SIZE, HEADS = 11, 6, 16, 2


@dataclass
class LanguageOutput:
    """What a language model returns; the loss is None without labels."""

    loss: Tensor | None
    logits: Tensor


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over positions of minus the log-probability of the next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the masked positions; the others have the label -100."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, size) to (batch, heads, length, size / heads)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


class Conv1D(nn.Module):
    """A linear layer with the weight stored inputs first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.2 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class GPT2Block(nn.Module):
    """Layer norm, causal attention; layer norm, MLP with the tanh form of GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.c_attn, self.c_proj = Conv1D(SIZE, 3 * SIZE), Conv1D(SIZE, SIZE)
        self.mlp = nn.Sequential(
            Conv1D(SIZE, 4 * SIZE), nn.GELU(approximate="tanh"), Conv1D(4 * SIZE, SIZE)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(self.ln_1(x)).split(SIZE, dim=2)
        query, key, value = (split_heads(part, HEADS) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(join_heads(mixed))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Causal language model; the scores use the embedding's weight."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LENGTH, SIZE)
        self.h = nn.ModuleList([GPT2Block() for _ in range(depth)])
        self.ln_f = nn.LayerNorm(SIZE)
        self.lm_head = nn.Linear(SIZE, VOCABULARY, bias=False)
        nn.init.normal_(self.wte.weight, std=0.1)
        nn.init.normal_(self.wpe.weight, std=0.1)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> LanguageOutput:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.wte(input_ids) + self.wpe(positions)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return LanguageOutput(None if labels is None else causal_loss(logits, labels), logits)


class LlamaRMSNorm(nn.Module):
    """Division by the root mean square of each token, then a scale."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (x * scale)


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs of (batch, heads, length, size) by angles that grow with the position."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angles = torch.arange(x.shape[2], dtype=x.dtype, device=x.device)[:, None] * frequencies
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class LlamaBlock(nn.Module):
    """RMS norm, rotary attention with one key for all queries; RMS norm, SwiGLU."""

    def __init__(self, hidden: int = 40) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(SIZE), LlamaRMSNorm(SIZE)
        self.q_proj = nn.Linear(SIZE, SIZE, bias=False)
        self.k_proj = nn.Linear(SIZE, SIZE // HEADS, bias=False)
        self.v_proj = nn.Linear(SIZE, SIZE // HEADS, bias=False)
        self.o_proj = nn.Linear(SIZE, SIZE, bias=False)
        self.gate_proj = nn.Linear(SIZE, hidden, bias=False)
        self.up_proj = nn.Linear(SIZE, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, SIZE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        query = rotate(split_heads(self.q_proj(normed), HEADS))
        key = rotate(split_heads(self.k_proj(normed), 1)).expand_as(query)
        value = split_heads(self.v_proj(normed), 1).expand_as(query)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o_proj(join_heads(mixed))
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Llama(nn.Module):
    """Causal language model with RMS norm, rotary positions and SwiGLU."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, SIZE)
        self.layers = nn.ModuleList([LlamaBlock() for _ in range(depth)])
        self.norm, self.lm_head = LlamaRMSNorm(SIZE), nn.Linear(SIZE, VOCABULARY, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.2)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> LanguageOutput:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return LanguageOutput(None if labels is None else causal_loss(logits, labels), logits)


class BertLayer(nn.Module):
    """Attention and MLP, each with a layer norm after its shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.value, self.dense = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.attention_norm, self.output_norm = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.intermediate, self.output = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        query, key, value = (split_heads(part, HEADS) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.attention_norm(x + self.dense(join_heads(mixed)))
        return self.output_norm(x + self.output(functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """Masked language model with a padding mask."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LENGTH, SIZE)
        self.norm = nn.LayerNorm(SIZE)
        self.layers = nn.ModuleList([BertLayer() for _ in range(depth)])
        self.transform = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.LayerNorm(SIZE))
        self.decoder = nn.Linear(SIZE, VOCABULARY)
        nn.init.normal_(self.word.weight, std=0.2)
        nn.init.normal_(self.position.weight, std=0.2)
        self.decoder.weight = self.word.weight

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> LanguageOutput:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.word(input_ids) + self.position(positions))
        for layer in self.layers:
            x = layer(x, attention_mask[:, None, None, :].bool())
        logits = self.decoder(self.transform(x))
        return LanguageOutput(None if labels is None else masked_loss(logits, labels), logits)


class LSTMClassifier(nn.Module):
    """Embedding, LSTM, scores from the last hidden state."""

    def __init__(self, classes: int, size: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.lstm = nn.LSTM(8, size, batch_first=True)
        self.fc = nn.Linear(size, classes)

    def forward(self, token_ids: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(self.embedding(token_ids))
        return self.fc(hidden[-1])
