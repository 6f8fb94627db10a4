"""Small networks of the kinds people train: ViT, GPT, Llama and ConvNeXt."""

import torch
from torch import nn
from torch.nn import functional

FEATURES = 8


class LlamaRMSNorm(nn.Module):
    """RMS normalization in float32, as language models write it; no class of torch."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden):
        dtype = hidden.dtype
        hidden = hidden.float()
        square = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(square + self.variance_epsilon)).to(dtype)


class LayerNorm2d(nn.LayerNorm):
    """Layer normalization over the channels at each position of an image."""

    def forward(self, x):
        last = x.permute(0, 2, 3, 1)
        return functional.layer_norm(
            last, self.normalized_shape, self.weight, self.bias, self.eps
        ).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Attention and a multilayer perceptron, each behind a norm layer and beside a skip."""

    def __init__(self, norm, causal=False):
        super().__init__()
        self.norm1, self.norm2, self.causal = norm(FEATURES), norm(FEATURES), causal
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES)
        self.mlp = nn.Sequential(
            nn.Linear(FEATURES, 2 * FEATURES), nn.GELU(), nn.Linear(2 * FEATURES, FEATURES)
        )

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / FEATURES**0.5
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        x = x + scores.softmax(-1) @ value
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Image patches, blocks with LayerNorm, mean over the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, FEATURES, 2, 2)
        self.blocks = nn.Sequential(Block(nn.LayerNorm), Block(nn.LayerNorm))
        self.norm, self.head = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 3)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class LanguageModel(nn.Module):
    """Next-token prediction; (batch, classes, tokens) as torch's cross entropy takes it."""

    def __init__(self, norm):
        super().__init__()
        self.embed = nn.Embedding(7, FEATURES)
        self.blocks = nn.Sequential(Block(norm, True), Block(norm, True))
        self.norm, self.head = norm(FEATURES), nn.Linear(FEATURES, 7, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens)))).transpose(1, 2)


class ConvNext(nn.Module):
    """A stem with channels first, a block with channels last."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, FEATURES, 2, 2), LayerNorm2d(FEATURES, eps=1e-6))
        self.depthwise = nn.Conv2d(FEATURES, FEATURES, 3, padding=1, groups=FEATURES)
        self.norm = nn.LayerNorm(FEATURES, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.GELU())
        self.head = nn.Linear(FEATURES, 3)

    def forward(self, x):
        x = self.stem(x)
        last = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        x = x + self.mlp(last).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))


def images(count=8):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 1, 4, 4, generator=generator), torch.arange(count) % 3


def sentences(count=8):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(7, (count, 6), generator=generator)
    return tokens[:, :-1].clone(), tokens[:, 1:].clone()


NETWORKS = {
    "vit": (Vit, images),
    "gpt": (lambda: LanguageModel(nn.LayerNorm), sentences),
    "llama": (lambda: LanguageModel(LlamaRMSNorm), sentences),
    "convnext": (ConvNext, images),
}


def network(name):
    """Return a network whose scales and shifts are not the initial ones, and a batch."""
    torch.manual_seed(0)
    make, data = NETWORKS[name]
    model = make()
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() == 1:
                each.add_(0.3 * torch.randn_like(each))
    return model, data()
