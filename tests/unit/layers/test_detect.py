"""Norm layers of other libraries, recognized by what they compute; normalized weights."""

import copy

import pytest
import torch
from tests.unit.layers.token_networks import LayerNorm2d, LlamaRMSNorm
from torch import nn
from torch.nn.utils import parametrizations

from normscope.errors import InputError
from normscope.layers import convert, fold, is_norm, kind_of, norm_layers, plan_conversion
from normscope.layers.detect import PositionwiseNorm, positionwise_norm, weight_norm_of
from normscope.problem.copies import copy_module


class T5LayerNorm(LlamaRMSNorm):
    """RMS normalization under the name of layer normalization."""


class MyLayerNorm(nn.Module):
    """Layer normalization of channels that are last or first, as ConvNeXt's first code wrote it."""

    def __init__(self, size, first=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.eps, self.first = 1e-6, first

    def forward(self, x):
        if not self.first:
            return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        x = x - x.mean(1, keepdim=True)
        x = x / torch.sqrt(x.square().mean(1, keepdim=True) + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class GemmaRMSNorm(LlamaRMSNorm):
    """Its scale is one plus the weight."""

    def forward(self, hidden):
        return super().forward(hidden) / self.weight * (1 + self.weight)


class SquaredRMSNorm(LlamaRMSNorm):
    """Its scale is the square of the weight, so it is not the RMS normalization of its weight."""

    def forward(self, hidden):
        return super().forward(hidden) * self.weight


class OutsideRMSNorm(LlamaRMSNorm):
    """Adds its epsilon to the root, not to the mean square."""

    def forward(self, hidden):
        root = hidden.pow(2).mean(-1, keepdim=True).sqrt()
        return self.weight * hidden / (root + self.variance_epsilon)


class ClampedRMSNorm(LlamaRMSNorm):
    """Limits its output, or its input."""

    def __init__(self, size, low=-3.0, high=3.0, of_input=False):
        super().__init__(size)
        self.limits, self.of_input = (low, high), of_input

    def forward(self, hidden):
        if self.of_input:
            return super().forward(hidden.clamp(*self.limits))
        return super().forward(hidden).clamp(*self.limits)


class RMSNormBlock(nn.Module):
    """Contains a norm layer and owns no weight."""

    def __init__(self):
        super().__init__()
        self.norm, self.eps = LlamaRMSNorm(4), 1e-6

    def forward(self, x):
        return x + self.norm(x)


def own_forward(norm):
    norm.forward = lambda x: 2 * x
    return norm


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.LayerNorm(4), PositionwiseNorm("layer")),
        (nn.RMSNorm(4), PositionwiseNorm("rms")),
        (LlamaRMSNorm(4), PositionwiseNorm("rms")),
        (LlamaRMSNorm(2), PositionwiseNorm("rms")),
        (LlamaRMSNorm(64).bfloat16(), PositionwiseNorm("rms")),
        (T5LayerNorm(4), PositionwiseNorm("rms")),
        (GemmaRMSNorm(4), PositionwiseNorm("rms", offset=1.0)),
        (MyLayerNorm(4), PositionwiseNorm("layer")),
        (MyLayerNorm(4, first=True), PositionwiseNorm("layer", 1, 2)),
        (LayerNorm2d(5), PositionwiseNorm("layer", 1, 2)),
        (LayerNorm2d(5, elementwise_affine=False), PositionwiseNorm("layer", 1, 2)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_normalization_is_recognized_by_what_it_computes(module, expected):
    state = copy.deepcopy(module.state_dict())
    random_state = torch.get_rng_state()
    assert positionwise_norm(module) == expected
    assert kind_of(module) == expected.kind
    assert is_norm(module)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(state[name], each) for name, each in module.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        SquaredRMSNorm,
        lambda size: OutsideRMSNorm(size, 1e-2),
        ClampedRMSNorm,
        lambda size: ClampedRMSNorm(size, -1e3, 1e3, of_input=True),
    ],
)
def test_name_alone_does_not_make_a_norm(make):
    module = make(16)
    assert positionwise_norm(module) is None
    assert kind_of(module) is None
    assert not is_norm(module)
    model = nn.Sequential(nn.Linear(4, 16), module, nn.LayerNorm(16))
    with pytest.raises(InputError, match="RMSNorm '1' looks like a norm layer by its name and"):
        convert(model, "layer")


def test_scale_of_one_plus_the_weight_is_kept():
    norm = GemmaRMSNorm(4)
    nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    centred = x - x.mean(-1, keepdim=True)
    converted = convert(norm, "layer")
    assert torch.allclose(converted(x), norm(centred), atol=1e-5)
    assert torch.allclose(converted.weight, 1 + norm.weight)
    assert convert(norm, "rms").weight.equal(norm.weight)


def test_module_that_only_contains_a_norm_is_none():
    block = RMSNormBlock()
    assert list(norm_layers(block)) == ["norm"]
    assert kind_of(convert(block, "layer").norm) == "layer"


def test_replaced_forward_is_not_taken_for_normalization():
    norm = own_forward(nn.LayerNorm(4))
    assert positionwise_norm(norm) is None
    with pytest.raises(InputError, match="does more than normalize"):
        convert(norm, "rms")


WEIGHT_NORMS = {
    "weight_norm": [nn.utils.weight_norm, parametrizations.weight_norm],
    "spectral_norm": [nn.utils.spectral_norm, parametrizations.spectral_norm],
}
CASES = [(kind, make) for kind, both in WEIGHT_NORMS.items() for make in both]
old_form = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


@old_form
@pytest.mark.parametrize(("kind", "make"), CASES)
def test_normalized_weights_are_listed_if_asked_for(kind, make):
    model = nn.Sequential(make(nn.Linear(4, 4)), nn.BatchNorm1d(4), nn.Linear(4, 2))
    listed = norm_layers(model, weight_norms=True)
    assert {name: kind_of(layer) for name, layer in listed.items()} == {"0": kind, "1": "batch"}
    assert list(norm_layers(model)) == ["1"]
    assert not is_norm(model[0])
    assert weight_norm_of(model[2]) is None


@old_form
@pytest.mark.parametrize(("kind", "make"), CASES)
@pytest.mark.parametrize("to", ["none", "layer", "rms", "dyt", "noisy"])
def test_conversion_keeps_normalized_weights(kind, make, to):
    torch.manual_seed(0)
    model = nn.Sequential(
        make(nn.Linear(4, 5)), nn.BatchNorm1d(5), nn.ReLU(), make(nn.Linear(5, 3))
    )
    x = torch.randn(6, 4)
    model(x)  # the weight of the old form is now a tensor with a graph
    before = copy.deepcopy(model.state_dict())
    converted = convert(model, to)
    assert kind_of(converted[0]) == kind_of(converted[3]) == kind
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    for name, each in converted.state_dict().items():
        if not name.startswith("1."):
            assert torch.equal(before[name], each)
    layers = converted.eval()[3], copy_module(model.eval()[3])
    with torch.no_grad():
        for each in (parameter for layer in layers for parameter in layer.parameters()):
            each.mul_(2)  # both normalize the weights that they have now
        torch.testing.assert_close(*(layer(torch.ones(1, 5)) for layer in layers))
    converted.train()(x).sum().backward()
    assert all(each.grad is not None for each in converted[0].parameters())


@old_form
@pytest.mark.parametrize(("kind", "make"), CASES)
def test_folding_into_normalized_weights_is_refused(kind, make):
    model = nn.Sequential(make(nn.Linear(4, 4)), nn.BatchNorm1d(4)).eval()
    with pytest.warns(match=f"its weights are normalized by {kind}, which must be removed first"):
        folded = fold(model)
    x = torch.randn(3, 4)
    torch.testing.assert_close(folded(x), model(x))


def test_parametrized_norm_layer_is_refused_and_not_read():
    norm = parametrizations.spectral_norm(nn.LayerNorm([3, 4]))
    before = copy.deepcopy(norm.state_dict())
    with pytest.raises(InputError, match="'0' has reparametrized tensors, which convert would"):
        convert(nn.Sequential(norm), "batch")
    assert plan_conversion(nn.Sequential(norm), "layer") == []
    assert all(torch.equal(before[name], each) for name, each in norm.state_dict().items())
