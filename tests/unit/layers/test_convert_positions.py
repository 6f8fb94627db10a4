"""Conversion of norm layers that treat each position by itself, as in transformers."""

import copy

import pytest
import torch
from tests.unit.layers.token_networks import (
    FEATURES,
    LayerNorm2d,
    LlamaRMSNorm,
    network,
)
from torch import nn

from normscope.errors import InputError
from normscope.layers import (
    NORMS,
    BatchNorm1d,
    BatchNorm2d,
    DynamicTanh,
    NoNorm,
    PositionNorm,
    ShiftedRMSNorm,
    convert,
    fold,
    kind_of,
    norm_layers,
    plan_conversion,
    population_statistics,
)

KINDS = sorted(set(NORMS) - {"instance"})
BY_BATCH = ("batch", "noisy", "l1", "l2", "linf")


def tokens(*shape):
    return 2 + 3 * torch.randn(shape, generator=torch.Generator().manual_seed(3)).double()


def layer_norm(size=4):
    norm = nn.LayerNorm(size, eps=1e-3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, size))
        norm.bias.copy_(torch.linspace(3, 1, size))
    return norm


def reference(kind, x, norm):
    """Return the definition over the last dimension, with the norm layer's eps and affine map."""
    rows = x.reshape(-1, x.shape[-1])
    if kind == "batch":
        rows = rows - rows.mean(0)
        rows = rows / (rows.square().mean(0) + norm.eps).sqrt()
    elif kind in ("l1", "l2", "linf"):
        order = {"l1": 1, "l2": 2, "linf": torch.inf}[kind]
        sizes = (
            rows.abs().amax(0) if kind == "linf" else rows.abs().pow(order).mean(0) ** (1 / order)
        )
        rows = (rows - rows.mean(0)) / (sizes + norm.eps)
    elif kind == "layer":
        rows = rows - rows.mean(1, keepdim=True)
        rows = rows / (rows.square().mean(1, keepdim=True) + norm.eps).sqrt()
    elif kind == "rms":
        rows = rows / (rows.square().mean(1, keepdim=True) + norm.eps).sqrt()
    elif kind == "dyt":
        rows = torch.tanh(0.5 * rows)
    rows = rows if kind == "none" else norm.weight * rows + norm.bias
    return rows.reshape(x.shape)


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (5, 4, 4), (5, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("kind", ["none", "batch", "layer", "rms", "dyt"])
def test_last_dimension_is_normalized_whatever_comes_before_it(kind, shape):
    norm, x = layer_norm(), tokens(*shape).requires_grad_()
    y, expected = convert(norm, kind)(x), reference(kind, x, norm)
    torch.testing.assert_close(y, expected)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(4)).double()
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad((expected * weights).sum(), x)[0])


def test_group_norm_has_the_groups_of_each_token():
    converted = convert(layer_norm(8), "group")
    x = tokens(5, 3, 8)
    groups = x.reshape(5, 3, 2, 4)
    groups = groups - groups.mean(-1, keepdim=True)
    groups = groups / (groups.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    norm = layer_norm(8)
    torch.testing.assert_close(converted(x), norm.weight * groups.reshape(x.shape) + norm.bias)


@pytest.mark.parametrize("name", ["vit", "gpt", "llama", "convnext"])
@pytest.mark.parametrize("to", KINDS)
def test_every_norm_layer_of_a_network_becomes_the_kind(name, to):
    model, (x, _) = network(name)
    given = copy.deepcopy(model.state_dict())
    converted = convert(model, to)
    expected = [to] * len(norm_layers(model)) if to != "none" else []
    assert [kind_of(layer) for layer in norm_layers(converted).values()] == expected
    y = converted(x)
    assert y.shape == model(x).shape
    assert y.isfinite().all()
    assert all(torch.equal(given[key], value) for key, value in model.state_dict().items())
    assert plan_conversion(converted, to) == []


@pytest.mark.parametrize("name", ["vit", "gpt", "llama"])
@pytest.mark.parametrize("between", KINDS)
def test_conversion_there_and_back_keeps_scale_and_shift(name, between):
    model, (x, _) = network(name)
    own = "rms" if name == "llama" else "layer"
    back = convert(convert(model, between), own)
    assert [kind_of(layer) for layer in norm_layers(back).values()] == [own] * 5
    if between not in ("none", "dyt"):  # none has no scale, dyt no eps
        torch.testing.assert_close(back(x), model(x))
    elif between == "none":
        assert back.norm.weight.tolist() == [1.0] * FEATURES
    else:
        assert torch.equal(back.norm.weight, model.norm.weight)


@pytest.mark.parametrize(("name", "to"), [("vit", "layer"), ("gpt", "layer"), ("llama", "rms")])
def test_conversion_to_its_own_kind_changes_nothing(name, to):
    model, (x, _) = network(name)
    converted = convert(model, to)
    assert plan_conversion(model, to) == []
    assert str(converted) == str(model)
    assert torch.equal(converted(x), model(x))


def test_absent_shift_stays_absent_and_a_present_one_is_kept():
    llama, _ = network("llama")
    assert convert(llama, "layer").norm.bias is None
    assert type(convert(convert(llama, "layer"), "rms").norm) is nn.RMSNorm
    gpt, _ = network("gpt")
    rms = convert(gpt, "rms").norm
    assert isinstance(rms, ShiftedRMSNorm)
    assert torch.equal(rms.bias, gpt.norm.bias)


def test_removed_layer_remembers_its_axis():
    removed = convert(layer_norm(), "none")
    assert isinstance(removed, NoNorm)
    assert repr(removed) == "NoNorm(4, dimensions=0, feature_axis=-1)"
    batch = convert(removed, "batch")
    assert isinstance(batch, PositionNorm)
    assert batch(tokens(5, 3, 4).float()).shape == (5, 3, 4)
    assert isinstance(convert(batch, "layer"), nn.LayerNorm)


def test_options_mode_and_dtype_are_carried_into_the_wrapped_layer():
    norm = layer_norm().eval()
    norm.weight.requires_grad_(False)
    batch = convert(norm, "batch")
    assert not batch.training
    assert not batch.norm.training
    assert (batch.norm.eps, batch.norm.weight.dtype) == (1e-3, torch.float64)
    assert not batch.norm.weight.requires_grad
    assert str(plan_conversion(norm, "dyt")[0]) == (
        "model: layer -> dyt, keeps weight, bias, adds alpha"
    )


@pytest.mark.parametrize("kind", ["batch", "noisy", "l1"])
def test_vectors_behind_a_flattening_get_the_layer_itself(kind):
    inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
    converted = convert(nn.Sequential(nn.Flatten(), nn.Dropout(), inner), kind)
    assert not any(isinstance(module, PositionNorm) for module in converted.modules())
    unknown = convert(nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 2)), inner), kind)
    assert isinstance(unknown[2][1], PositionNorm)


def test_layer_that_is_also_used_elsewhere_may_get_tokens():
    norm = nn.LayerNorm(4)
    model = nn.ModuleList([nn.Sequential(nn.Flatten(), norm), norm])
    assert isinstance(convert(model, "batch")[1], PositionNorm)


def test_running_statistics_are_those_over_batch_and_tokens():
    batch, x = convert(layer_norm(), "batch"), tokens(50, 3, 4)
    population_statistics(nn.Sequential(batch), x)
    rows = x.reshape(-1, 4)
    torch.testing.assert_close(batch.norm.running_mean, rows.mean(0))
    torch.testing.assert_close(batch.norm.running_var, rows.var(0))
    rescaled = (rows - rows.mean(0)) / (rows.var(0) + 1e-3).sqrt()
    expected = (batch.norm.weight * rescaled + batch.norm.bias).reshape(x.shape)
    torch.testing.assert_close(batch.eval()(x), expected)


@pytest.mark.parametrize("kind", ["batch", "l2", "rms", "layer", "group"])
def test_output_does_not_depend_on_the_scale_of_the_input(kind):
    norm = convert(nn.LayerNorm(8, eps=1e-12).double(), kind)
    x = tokens(6, 3, 8)
    torch.testing.assert_close(norm(7 * x), norm(x))


def test_batch_statistics_of_a_causal_model_contain_later_tokens():
    gpt, (x, _) = network("gpt")
    other = x.clone()
    other[:, -1] = (other[:, -1] + 1) % 7
    for kind in KINDS:
        if kind == "noisy":
            continue
        model = convert(gpt, kind)
        same = torch.allclose(model(x)[..., 0], model(other)[..., 0], atol=1e-6)
        assert same == (kind not in BY_BATCH), kind


def test_instance_norm_of_tokens_is_refused():
    model, _ = network("vit")
    with pytest.raises(InputError, match="as in a transformer, normalize each position by itself"):
        convert(model, "instance")


class TestChannelsFirst:
    """Normalization over the channels at each position of an image."""

    @pytest.mark.parametrize("kind", ["layer", "rms", "group", "dyt", "none"])
    def test_positions_are_treated_by_themselves(self, kind):
        norm = LayerNorm2d(8, eps=1e-3).double()
        norm.load_state_dict(layer_norm(8).state_dict())
        x = tokens(5, 8, 3, 2)
        last = convert(layer_norm(8), kind)(x.movedim(1, -1))
        torch.testing.assert_close(convert(norm, kind)(x), last.movedim(-1, 1))

    @pytest.mark.parametrize("kind", ["batch", "l1", "instance", "dyt"])
    def test_kinds_that_treat_each_channel_by_itself_are_plain_layers(self, kind):
        norm = convert(nn.Sequential(LayerNorm2d(FEATURES)), kind)[0]
        assert not isinstance(norm, PositionNorm)
        assert norm.num_features == FEATURES

    def test_batch_norm_is_that_of_images(self):
        model, _ = network("convnext")
        converted = convert(model, "batch")
        assert type(converted.stem[1]) is BatchNorm2d
        assert type(converted.norm.norm) is BatchNorm1d

    @pytest.mark.parametrize("first", ["none", "rms", "group", "layer"])
    @pytest.mark.parametrize("kind", ["batch", "instance", "dyt", "group", "none"])
    def test_dimensions_are_remembered(self, first, kind):
        twice = convert(convert(nn.Sequential(LayerNorm2d(8)), first), kind)
        once = convert(nn.Sequential(LayerNorm2d(8)), kind)
        assert str(twice) == str(once)
        assert twice(tokens(5, 8, 3, 2).float()).shape == (5, 8, 3, 2)

    @pytest.mark.parametrize("between", ["none", "rms", "group"])
    def test_way_back_gives_the_same_network(self, between):
        model, (x, _) = network("convnext")
        back = convert(convert(model, between), "layer")
        if between == "none":
            with torch.no_grad():
                back.stem[1].norm.weight.copy_(model.stem[1].weight)
                back.stem[1].norm.bias.copy_(model.stem[1].bias)
                back.norm.load_state_dict(model.norm.state_dict())
        torch.testing.assert_close(back(x), model(x))


class TestTorchEncoder:
    """In eval mode torch's encoder runs a fused kernel that ignores what its norm layers are."""

    @pytest.mark.parametrize("to", ["batch", "rms", "dyt", "none"])
    @pytest.mark.parametrize("padded", [False, True])
    def test_eval_mode_runs_the_new_layers(self, to, padded):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2)
        x = torch.randn(4, 3, 8)
        mask = torch.tensor([[False, False, True]] * 4) if padded else None
        converted = convert(model, to)
        if to == "batch":
            population_statistics(converted, x)
        converted.eval()
        with_graph = converted(x, src_key_padding_mask=mask)
        with torch.no_grad():
            torch.testing.assert_close(converted(x, src_key_padding_mask=mask), with_graph.detach())
        assert model.use_nested_tensor
        assert model.layers[0].activation_relu_or_gelu == 1

    def test_untouched_encoder_keeps_its_kernel(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        assert convert(layer, "layer").activation_relu_or_gelu == 1


def test_fused_activation_of_a_norm_over_tokens_is_kept():
    class LayerNormAct(nn.LayerNorm):
        def __init__(self, size):
            super().__init__(size)
            self.act = nn.LeakyReLU(0.3)

        def forward(self, x):
            return self.act(super().forward(x))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), LayerNormAct(4))
    x = torch.randn(5, 3, 4)
    converted = convert(model, "rms")
    assert [type(each) for each in converted[1]] == [ShiftedRMSNorm, nn.LeakyReLU]
    expected = nn.functional.leaky_relu(nn.functional.rms_norm(model[0](x), (4,), eps=1e-5), 0.3)
    torch.testing.assert_close(converted(x), expected)


def test_batch_norm_over_tokens_is_not_folded_wrongly():
    torch.manual_seed(0)
    model = convert(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "batch").eval()
    x = torch.randn(5, 3, 4)
    with pytest.warns(match=r"fold leaves '1\.norm'"):
        folded = fold(model, inputs=x)
    torch.testing.assert_close(folded(x), model(x))


def test_dynamic_tanh_replaces_the_norm_of_a_token():
    converted = convert(LlamaRMSNorm(4), "dyt")
    assert isinstance(converted, DynamicTanh)
    assert converted.bias is None


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 5, 5, 4)])
def test_layer_norm_over_tokens_comes_back_from_group_norm(shape):
    layer = nn.Sequential(layer_norm())
    again = convert(convert(layer, "group"), "layer")
    torch.testing.assert_close(again(tokens(*shape)), layer(tokens(*shape)))
