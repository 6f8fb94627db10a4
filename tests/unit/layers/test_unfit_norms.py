"""Which kinds of normalization a model can have: told by a pass of each."""

import pytest
import torch
from torch import nn

from normscope.errors import MisfitError, UnknownNameError
from normscope.layers import NORMS
from normscope.layers.surgery.unfit import input_dimensions, unfit_norms
from normscope.problem import Problem


class Tokens(nn.Module):
    """Layer norm over (samples, tokens, features)."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU())
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.block(x).mean(1))


class Curious(nn.Module):
    """It asks its norm layer for what only layer norm has."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        assert self.norm.normalized_shape == (4,)
        return self.head(self.norm(x))


def batch(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, *shape, generator=generator), torch.arange(6) % 3


def unfit(model, norms, data):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    found = unfit_norms(Problem(model, "cross_entropy", data), norms, data, seed=0)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    return found


def test_tokens_take_every_norm_that_needs_no_positions():
    found = unfit(Tokens(), list(NORMS), batch(5, 4))
    assert list(found) == ["instance"]
    assert found["instance"].endswith(
        "normalize each position by itself; choose layer, rms, batch or dyt"
    )


def test_layer_that_refuses_its_input_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(20, 3))
    found = unfit(model, ["none", "batch", "layer", "group"], batch(5, 4))
    assert list(found) == ["batch", "group"]
    assert found["batch"] == (
        "layer '1' (BatchNorm1d) expects 4 channels, got an input of shape (6, 5, 4), from "
        "a batch of shape (6, 5, 4)"
    )
    assert "layer '1' (GroupNorm)" in found["group"]


@pytest.mark.parametrize(("shape", "dimensions"), [((5, 4), 3), ((4,), 2)])
def test_dimensions_of_inputs_are_measured_and_hooks_are_removed(shape, dimensions):
    model = nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.RMSNorm(4))
    data = torch.ones(6, *shape), torch.ones(6, *shape)
    found = input_dimensions(Problem(model, "squared_error", data), data, seed=0)
    assert found == {"0": dimensions, "2": dimensions}
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_norms_that_fit_are_not_told():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert unfit(model, ["none", "batch", "layer", "group", "l2"], batch(4)) == {}


def test_error_of_the_users_code_with_another_layer_is_told():
    found = unfit(Curious(), ["layer", "dyt"], batch(4))
    assert list(found) == ["dyt"]
    assert found["dyt"].startswith("AttributeError: 'DynamicTanh' object has no attribute")


def test_model_without_places_for_norm_layers_is_told_as_convert_has_it():
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.hidden(x) * 2)

    found = unfit(Alone(), ["none", "batch", "layer"], batch(4))
    assert list(found) == ["batch", "layer"]
    assert found["layer"].startswith("the model itself (Alone) has layers but no norm layers")


def test_data_that_does_not_fit_the_model_as_given_is_no_fault_of_a_norm():
    with pytest.raises(MisfitError, match=r"the data does not fit the model: layer 'block\.0'"):
        unfit(Tokens(), ["none", "batch"], batch(5, 7))


def test_unknown_norm_is_an_error():
    with pytest.raises(UnknownNameError, match="did you mean 'batch'"):
        unfit(Tokens(), ["none", "bach"], batch(5, 4))
