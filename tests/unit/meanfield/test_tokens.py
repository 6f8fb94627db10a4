"""Tokens, attention, reshapes and branches against wide random networks of torch.

The reference are products of the mean gradients of two batches, by autograd in float64. Theory and
reference are means over a few seeds; a tolerance of 0.15 per layer is what a width of 200 leaves.
"""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import InputError, NoClosureError, ShapeError
from normscope.meanfield import predict
from normscope.meanfield.attention import Attention
from normscope.meanfield.field import Field, Setting, Signal
from normscope.meanfield.pooling import overlap
from normscope.meanfield.reading import read

WIDTH, TOKENS, FEATURES = 200, 9, 96


def terms_by_autograd(model, names, first, second):
    """Product of the mean gradients of two batches by some weights, mean over the outputs."""
    known, places = dict(model.named_parameters()), []
    for name in names:
        part = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name)
        rows = slice(int(part[2]), int(part[3])) if part else slice(None)
        places.append((known[f"{part[1] if part else name}.weight"], rows))
    weights = [weight for weight, _ in places]
    outputs = [model(batch).mean(0) for batch in (first, second)]
    terms = torch.zeros(len(weights), dtype=torch.float64)
    for pair in zip(*outputs, strict=True):
        a, b = (torch.autograd.grad(each, weights, retain_graph=True) for each in pair)
        each = [(g[rows] * h[rows]).sum() for g, h, (_, rows) in zip(a, b, places, strict=True)]
        terms += torch.stack(each)
    return terms / len(outputs[0])


def agree(make, shape, samples=48, seeds=3, tolerance=0.15, floor=0.03):
    measured, theory = 0.0, 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = make().double()
        found = predict(model, shape, "frozen")
        draws = torch.Generator().manual_seed(seed + 100)
        batches = [
            torch.randn(samples, *shape, generator=draws, dtype=torch.float64) for _ in range(2)
        ]
        names = [row.name for row in found.layers]
        measured = measured + terms_by_autograd(model, names, *batches) / seeds
        theory = theory + torch.tensor([row.term for row in found.layers]).double() / seeds
    off = (theory - measured).abs() - floor * float(theory.sum())
    assert torch.all(off < tolerance * theory), f"{theory.tolist()} against {measured.tolist()}"
    return found


class Tokens(nn.Module):
    """Tokens of features, one block in a residual branch, mean over tokens, linear head."""

    def __init__(self, block, norm=nn.LayerNorm, width=WIDTH):
        super().__init__()
        self.embed, self.norm = nn.Linear(FEATURES, width), norm(width)
        self.block, self.last = block(width), norm(width)
        self.head = nn.Linear(width, 5)
        self.positions = nn.Parameter(0.4 * torch.randn(1, TOKENS, width))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)

    def forward(self, x):
        x = self.embed(x) + self.positions
        x = x + self.block(self.norm(x))
        return self.head(functional.gelu(self.last(x)).mean(1))


class MLP(nn.Module):
    activation = staticmethod(functional.gelu)

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.activation(self.up(x)))


class Hardswish(MLP):
    activation = staticmethod(functional.hardswish)


class Gated(nn.Module):
    """The gate and the values are rows of one layer, of different variance."""

    def __init__(self, width):
        super().__init__()
        self.both = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        gate, value = self.both(x).chunk(2, -1)
        return self.down(functional.silu(gate) * value)


class OwnRMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.full((width,), 1.3)), 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class OffsetRMSNorm(OwnRMSNorm):
    """Its scale is one plus the weight, as in Gemma."""

    def __init__(self, width):
        super().__init__(width)
        nn.init.constant_(self.weight, 0.3)

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, OwnRMSNorm, OffsetRMSNorm])
@pytest.mark.parametrize("block", [MLP, Gated])
def test_normalization_and_mlp_of_each_token(block, norm):
    agree(lambda: Tokens(block, norm), (TOKENS, FEATURES))


def test_hardswish():
    agree(lambda: Tokens(Hardswish), (TOKENS, FEATURES))


class SelfAttention(nn.Module):
    """Attention in several spellings, all with the same weights."""

    heads = 4

    def __init__(self, width, how="function", causal=False, scale=1.0):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.how, self.causal, self.scale = how, causal, scale
        self.drop = nn.Dropout(0.0)
        self.register_buffer("mask", torch.ones(TOKENS, TOKENS).tril())

    def forward(self, x):
        samples, length, width = x.shape
        head = width // self.heads
        if self.how == "chunks":
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            q = q.view(samples, length, self.heads, head).transpose(1, 2)
            k = k.view(samples, length, self.heads, head).transpose(1, 2)
            v = v.view(samples, length, self.heads, head).transpose(1, 2)
        else:
            qkv = self.qkv(x).reshape(samples, length, 3, self.heads, head)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.how == "products":
            logits = self.scale * (q @ k.transpose(-2, -1)) / head**0.5
            if self.causal:
                logits = logits.masked_fill(self.mask == 0, float("-inf"))
            mixed = self.drop(logits.softmax(dim=-1)) @ v
        else:
            mixed = functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, scale=self.scale * head**-0.5
            )
        return self.out(mixed.transpose(1, 2).reshape(samples, length, width))


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    found = agree(
        lambda: Tokens(lambda width: SelfAttention(width, causal=causal, scale=0.5)),
        (TOKENS, FEATURES),
    )
    assert "attention weights are expanded about uniform ones" in " ".join(found.notes)
    # without attention to the tokens, the terms of its layers would be others
    assert found.layers[3].term > 0.02 * found.lower_bound


@pytest.mark.parametrize("causal", [False, True])
def test_spellings_of_attention_are_the_same(causal):
    found = []
    for how in ("function", "chunks", "products"):
        torch.manual_seed(0)
        model = Tokens(lambda width, how=how: SelfAttention(width, how, causal), width=40)
        found.append(predict(model, (TOKENS, FEATURES)).lambda_max)
    assert found[1:] == pytest.approx(found[:1] * 2, rel=1e-12)


def test_dropout_of_attention_weights_is_refused():
    model = Tokens(lambda width: SelfAttention(width, "products"), width=40)
    model.block.drop = nn.Dropout(0.1)
    with pytest.raises(NoClosureError, match=r"^block\.drop: .* not the output of a layer"):
        predict(model, (TOKENS, FEATURES))


def test_attention_far_from_uniform_is_refused():
    torch.manual_seed(0)
    model = Tokens(lambda width: SelfAttention(width, scale=2.0), width=40)
    with pytest.raises(NoClosureError, match=r"block \(SelfAttention\): .* nearly uniform"):
        predict(model, (TOKENS, FEATURES))


class TorchAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, SelfAttention.heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


def test_torch_module_is_the_function():
    torch.manual_seed(0)
    model, same = Tokens(TorchAttention, width=40), Tokens(SelfAttention, width=40)
    same.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        same.block.qkv.weight.copy_(model.block.inner.in_proj_weight)
        same.block.qkv.bias.copy_(model.block.inner.in_proj_bias)
        same.block.out.weight.copy_(model.block.inner.out_proj.weight)
        same.block.out.bias.copy_(model.block.inner.out_proj.bias)
    shape = (TOKENS, FEATURES)
    x = torch.randn(3, *shape)
    assert torch.allclose(model(x), same(x), atol=1e-6)
    expected = predict(same, shape).lambda_max
    assert predict(model, shape).lambda_max == pytest.approx(expected, rel=1e-9)


class Encoder(nn.Module):
    def __init__(self, norm_first):
        super().__init__()
        options = {"dim_feedforward": 80, "dropout": 0.0, "batch_first": True}
        layer = nn.TransformerEncoderLayer(40, 4, norm_first=norm_first, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.head = nn.Linear(FEATURES, 40), nn.Linear(40, 5)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


class ByHand(nn.Module):
    """The same by the encoder's parts."""

    def __init__(self, source, norm_first):
        super().__init__()
        self.embed, self.head, self.norm_first = source.embed, source.head, norm_first
        self.layers = source.encoder.layers

    def forward(self, x):
        x = self.embed(x)
        for each in self.layers:
            for norm, branch in ((each.norm1, self.attend), (each.norm2, self.feed_forward)):
                x = x + branch(each, norm(x)) if self.norm_first else norm(x + branch(each, x))
        return self.head(x.mean(1))

    @staticmethod
    def attend(layer, x):
        return layer.self_attn(x, x, x, need_weights=False)[0]

    @staticmethod
    def feed_forward(layer, x):
        return layer.linear2(torch.relu(layer.linear1(x)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_of_torch_is_its_parts(norm_first):
    torch.manual_seed(0)
    model = Encoder(norm_first)
    with torch.no_grad():  # the layers are copies of one
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    shape = (TOKENS, FEATURES)
    expected = predict(ByHand(model, norm_first), shape, "frozen")
    found = predict(model, shape, "frozen")
    assert len(found.layers) == 14
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-12)


class ClassToken(nn.Module):
    """Patches by a convolution or by reshapes, a class token, attention, the token's output."""

    def __init__(self, patches="convolution"):
        super().__init__()
        self.patches = patches
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.token = nn.Parameter(0.7 * torch.randn(1, 1, WIDTH))
        self.norm, self.attention = nn.LayerNorm(WIDTH), SelfAttention(WIDTH, scale=0.5)
        self.head = nn.Linear(WIDTH, 5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        self.convolution = nn.Conv2d(FEATURES // 4, WIDTH, 2, 2)
        with torch.no_grad():
            self.convolution.weight.copy_(self.embed.weight.view(WIDTH, -1, 2, 2))
            self.convolution.bias.copy_(self.embed.bias)

    def forward(self, x):
        if self.patches == "convolution":
            x = self.convolution(x).flatten(2).transpose(1, 2)
        else:
            samples = x.shape[0]
            x = x.reshape(samples, -1, 3, 2, 3, 2).permute(0, 2, 4, 1, 3, 5)
            x = self.embed(x.reshape(samples, 9, FEATURES))
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.attention(self.norm(x))
        return self.head(functional.gelu(x[:, 0]))


def test_class_token():
    found = agree(ClassToken, (FEATURES // 4, 6, 6))
    assert found.layers[0].positions == 9


def test_patches_by_reshapes_are_those_by_a_convolution():
    found = []
    for patches in ("convolution", "reshapes"):
        torch.manual_seed(0)
        found.append(predict(ClassToken(patches), (FEATURES // 4, 6, 6)).lambda_max)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


class Permuted(nn.Module):
    """One map with its axes moved about, and as it is."""

    def __init__(self, moved):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16 * 25, 5)
        self.moved = moved

    def forward(self, x):
        x = self.first(x)
        if self.moved:
            x = x.permute(0, 2, 3, 1).unsqueeze(1).flatten(2, 3)
            x = torch.relu(x).squeeze(1).transpose(1, 2).contiguous().view(-1, 16, 5, 5)
            x = self.second(self.norm(x))
            return self.head(x.movedim(1, -1).reshape(x.size(0), -1))
        return self.head(self.second(self.norm(torch.relu(x))).flatten(1))


@pytest.mark.parametrize("closure", ["train", "frozen"])
def test_moved_axes_change_nothing(closure):
    moved, plain = (predict(Permuted(each), (3, 5, 5), closure) for each in (True, False))
    assert moved.lambda_max == pytest.approx(plain.lambda_max, rel=1e-12)
    assert [row.name for row in moved.layers] == ["first", "second", "head"]


class ConvNeXt(nn.Module):
    """Depthwise convolution, normalization and MLP in the last dimension, layer scale."""

    def __init__(self, channels=96):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, 2)
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm, self.up = nn.LayerNorm(channels), nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)
        self.last, self.head = nn.LayerNorm(channels), nn.Linear(channels, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(self.last(x.mean((-2, -1))))


def test_block_with_depthwise_convolution_and_layer_scale():
    agree(ConvNeXt, (3, 12, 12))


class Dense(nn.Module):
    """Channels of two layers side by side, then a transition."""

    def __init__(self, norm=True):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 96, 3, padding=1)
        self.mix, self.head = nn.Conv2d(160, 128, 1), nn.Linear(128, 5)
        self.pool = nn.AvgPool2d(2)
        for module in (self.first, self.second, self.mix):
            nn.init.kaiming_normal_(module.weight)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.cat([x, torch.relu(self.second(x))], 1)
        return self.head(torch.relu(self.mix(self.pool(x))).mean((2, 3)))


def test_concatenated_channels():
    agree(Dense, (3, 6, 6))


@pytest.mark.parametrize("pool", [(3, 2, 1), (2, 2, 0)])
def test_max_pooling_with_and_without_overlap(pool):
    def make():
        model = nn.Sequential(
            nn.Conv2d(4, 96, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(*pool),
            nn.Conv2d(96, 96, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(*pool),
            nn.Flatten(),
            nn.Linear(96 * 4, 5),
        )
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        return model

    found = agree(make, (4, 8, 8))
    assert "equally correlated" in " ".join(found.notes)


@pytest.mark.parametrize("sizes", [(4, 4, 4, 0.6), (9, 9, 3, 0.9), (9, 9, 3, 1.0), (6, 9, 1, 0.5)])
def test_largest_values_of_two_windows(sizes):
    """Covariance, and the probability of one shared position, against a simulation of 4e5."""
    first, second, shared, correlation = sizes
    rng, draws = np.random.default_rng(0), 400_000
    x, y = (rng.standard_normal((draws, size)) for size in (first, second))
    free = np.sqrt(1 - correlation**2)
    y[:, :shared] = correlation * x[:, :shared] + free * y[:, :shared]
    both = (x.argmax(1) == y.argmax(1)) & (x.argmax(1) < shared)
    found, angle = overlap(first, second, shared), np.arcsin(correlation)
    simulated = np.cov(x.max(1), y.max(1))[0, 1]
    assert float(found.covariance(angle)) == pytest.approx(simulated, abs=0.003)
    assert float(found.largest(angle)) == pytest.approx(both.mean() / shared, abs=0.002)


def kernel_of(tokens, width, rng):
    values = rng.standard_normal((tokens, width))
    return values @ values.T / width


def test_gradients_of_attention_are_derivatives_of_its_kernel():
    """The signals at queries, keys and values against central differences of the output."""
    rng = np.random.default_rng(0)
    weights = np.tril(np.ones((5, 5)))
    operation = Attention(weights / weights.sum(1, keepdims=True), 0.3, 8)
    fields = []
    for _ in range(3):
        planes = np.stack([kernel_of(5, 7, rng), kernel_of(5, 7, rng)])
        fields.append(Field(32, (5,), True, np.zeros((1, 5)), planes[None]))
    arriving = rng.standard_normal((1, 2, 5, 5))
    signal, setting = Signal(arriving, np.zeros((1, 4))), Setting()

    def total(which, step):
        changed = list(fields)
        kernel = fields[which].kernel + step
        changed[which] = Field(32, (5,), True, np.zeros((1, 5)), kernel)
        return float((operation.apply(changed, setting).kernel * arriving).sum())

    output = operation.apply(fields, setting)
    for which in range(3):
        found = operation.pull_back(signal, fields, which, output, setting).kernel
        direction = rng.standard_normal(found.shape)
        expected = (total(which, 1e-5 * direction) - total(which, -1e-5 * direction)) / 2e-5
        assert float((found * direction).sum()) == pytest.approx(expected, rel=1e-7)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Linear(12, 30), nn.Linear(9, 9), nn.Linear(30, 5)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.mix(x.transpose(1, 2)).mean(-1))


class Inner(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


def nested(how):
    blocks = nn.Sequential(nn.Linear(20, 30), nn.Sequential(nn.ReLU(), Inner(how)))
    return nn.Sequential(blocks, nn.Linear(30, 5))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nested(lambda x: torch.cumsum(x, 1)), r"^0\.1\.1 \(Inner\): .* the function cumsum"),
        (nested(lambda x: x * x), r"^mul in 0\.1\.1 \(Inner\) multiplies branches"),
        (nested(lambda x: x.softmax(-1)), r"^0\.1\.1 \(Inner\): .* a softmax outside of attention"),
        (nested(lambda x: x @ x.T @ x), r"^0\.1\.1 \(Inner\): .* a product of two activations"),
        (nested(lambda x: x[0]), r"^the output|^1: .* channels|^0\.1\.1"),
        (Mixer(), "^mix: .* Linear over positions instead of channels"),
    ],
)
def test_refusal_names_the_path_and_the_operation(model, said):
    shape = (9, 12) if isinstance(model, Mixer) else (20,)
    with pytest.raises(InputError, match=said):
        predict(model, shape)


def test_too_many_tokens_are_refused():
    model = Tokens(SelfAttention, width=16)
    model.positions = nn.Parameter(torch.zeros(1, 1, 16))
    with pytest.raises(ShapeError, match="attention over 700 tokens"):
        predict(model, (700, FEATURES))


def test_data_of_tokens_has_its_channels_last():
    torch.manual_seed(0)
    model = Tokens(MLP, width=40)
    data = torch.randn(400, TOKENS, FEATURES)
    by_data = predict(model, data=data, closure="frozen").lambda_max
    assert by_data == pytest.approx(predict(model, data.shape[1:], "frozen").lambda_max, rel=0.02)
    shifted = data + torch.randn(FEATURES)  # tokens and samples share it
    assert predict(model, data=shifted, closure="frozen").lambda_max > 1.1 * by_data


def test_data_of_few_directions_is_noted():
    torch.manual_seed(0)
    model = Tokens(MLP, width=40)
    few = torch.randn(200, 3) @ torch.randn(3, TOKENS * FEATURES)
    found = predict(model, data=few.view(200, TOKENS, FEATURES))
    assert any("vary along about" in note for note in found.notes)
    many = predict(model, data=torch.randn(200, TOKENS, FEATURES))
    assert not any("vary along about" in note for note in many.notes)


def test_parameters_without_a_term_are_noted():
    model = Tokens(MLP, width=40)
    shape = (TOKENS, FEATURES)
    note = "3 norms and constants that do not follow a weighted layer"
    assert any(note in each for each in predict(model, shape, parameters="all").notes)
    assert not any(note in each for each in predict(model, shape).notes)


def test_constants_shift_and_scale():
    """A shift and a scale of all channels are those of the layer before, in its weights."""
    linear, head = nn.Linear(20, 64), nn.Linear(64, 5)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.head = linear, head
            self.scale, self.shift = nn.Parameter(torch.rand(64)), nn.Parameter(torch.randn(64))

        def forward(self, x):
            return self.head(torch.relu(2 * self.linear(x) * self.scale + self.shift))

    model = Scaled()
    node = read(model, (20,)).nodes
    names = [type(each.operation).__name__ for each in node]
    assert names == ["Linear", "Scale", "Scale", "Shift", "Nonlinearity", "Linear"]
    square = float(model.scale.detach().double().square().mean())
    assert node[2].operation.second == pytest.approx(square)
    assert node[3].operation.mean == pytest.approx(float(model.shift.detach().double().mean()))
