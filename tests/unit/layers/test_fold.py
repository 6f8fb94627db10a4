import copy
import functools
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from normscope.errors import (
    ArgumentTypeError,
    MisfitError,
    NormscopeWarning,
    ShapeError,
    StateError,
)
from normscope.layers import BatchNorm2d, LpNorm1d, LpNorm2d, NoisyBatchNorm2d, fold, is_batch_norm
from normscope.layers.kinds import is_lp_norm


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def randomized(model):
    """Statistics, scales and shifts as after training: none at its default."""
    for module in model.modules():
        if is_batch_norm(module) or is_lp_norm(module):
            for name, tensor in module.state_dict(keep_vars=True).items():
                if name in ("running_var", "running_scale"):
                    tensor.data.uniform_(0.2, 3.0)
                elif tensor.is_floating_point():
                    tensor.data.normal_()
    return model


def norms_in(model):
    return [name for name, m in model.named_modules() if is_batch_norm(m) or is_lp_norm(m)]


def assert_folds(model, x, left=(), tolerance=1e-10):
    """The folded model computes the same, only the named layers are left; the input is intact."""
    model = randomized(model).to(x.dtype)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folded = fold(model)
    assert norms_in(folded) == list(left)
    assert type(folded) is type(model)
    assert not any(module.training for module in folded.modules())
    assert [m.training for m in model.modules()] == modes
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    messages = [str(w.message) for w in caught if issubclass(w.category, NormscopeWarning)]
    assert len(messages) == len(caught) == bool(left)
    assert all(repr(name) in messages[0] for name in left)
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x.clone())
        result = folded(x.clone())
    error = (result - expected).abs().max() / expected.abs().max()
    assert error < tolerance
    return folded, messages[0] if messages else ""


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


CONVOLUTIONS = {
    "1d": (nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), (3, 4, 8)),
    "2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), (3, 4, 8, 8)),
    "3d": (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6), (3, 4, 4, 4, 4)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), (3, 4, 6, 6)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4), (3, 4, 6, 6)),
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2), nn.BatchNorm2d(6), (3, 4, 6, 6)),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3), nn.BatchNorm1d(6), (3, 4, 5)),
    "transposed 2d": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
        nn.BatchNorm2d(6),
        (3, 4, 5, 5),
    ),
    "transposed 3d": (nn.ConvTranspose3d(4, 6, 2), nn.BatchNorm3d(6), (3, 4, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), nn.BatchNorm1d(6), (3, 4)),
    "linear, no bias": (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), (3, 4)),
    "affine=False": (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False), (3, 4, 6, 6)),
    "synchronized": (nn.Conv2d(4, 6, 3), nn.SyncBatchNorm(6), (3, 4, 6, 6)),
    "ours": (nn.Conv2d(4, 6, 3), BatchNorm2d(6), (3, 4, 6, 6)),
    "noisy": (nn.Conv2d(4, 6, 3), NoisyBatchNorm2d(6), (3, 4, 6, 6)),
    "l1": (nn.Conv2d(4, 6, 3), LpNorm2d(6, p=1), (3, 4, 6, 6)),
    "linf": (nn.Linear(4, 6), LpNorm1d(6, p=float("inf"), affine=False), (3, 4)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_norm_folds_into_the_layer_before_it(case):
    layer, norm, shape = CONVOLUTIONS[case]
    folded, _ = assert_folds(nn.Sequential(layer, norm, nn.ReLU()), doubles(*shape))
    assert type(folded[1]) is nn.Identity


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_folding_in_single_precision_keeps_outputs(case):
    layer, norm, shape = CONVOLUTIONS[case]
    assert_folds(nn.Sequential(layer, norm, nn.ReLU()), torch.randn(*shape), tolerance=1e-5)


AFTER = {
    "linear": (nn.BatchNorm1d(4), [nn.Linear(4, 6)], (3, 4)),
    "linear, no bias": (nn.BatchNorm1d(4), [nn.Linear(4, 6, bias=False)], (3, 4)),
    "unpadded": (nn.BatchNorm2d(4), [nn.Conv2d(4, 6, 3)], (3, 4, 6, 6)),
    "valid": (nn.BatchNorm2d(4), [nn.Conv2d(4, 6, 3, padding="valid")], (3, 4, 6, 6)),
    "same, one pixel": (nn.BatchNorm2d(4), [nn.Conv2d(4, 6, 1, padding="same")], (3, 4, 6, 6)),
    "grouped": (nn.BatchNorm1d(4), [nn.Conv1d(4, 6, 3, groups=2, bias=False)], (3, 4, 6)),
    "reflecting": (
        nn.BatchNorm2d(4),
        [nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")],
        (3, 4, 6, 6),
    ),
    "dropped": (nn.BatchNorm1d(4), [nn.Dropout(), nn.Identity(), nn.Linear(4, 6)], (3, 4)),
    "flattened": (nn.BatchNorm2d(4), [nn.Flatten(), nn.Linear(36, 6)], (3, 4, 3, 3)),
    "l2": (LpNorm1d(4, p=2), [nn.Linear(4, 6)], (3, 4)),
}


@pytest.mark.parametrize("case", AFTER)
def test_norm_without_a_layer_before_it_folds_into_the_one_after(case):
    norm, rest, shape = AFTER[case]
    assert_folds(nn.Sequential(nn.ReLU(), norm, *rest), doubles(*shape))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, 3, padding="same"),
        nn.ConvTranspose2d(4, 6, 3),
    ],
    ids=str,
)
def test_zero_padding_after_the_norm_keeps_it_unless_its_shift_is_zero(layer):
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), layer)
    _, message = assert_folds(model, doubles(3, 4, 6, 6), left=["1"])
    assert "pads with zeros" in message
    centred = randomized(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4), layer)).double()
    nn.init.zeros_(centred[1].running_mean)
    nn.init.zeros_(centred[1].bias)
    folded = fold(centred)
    assert norms_in(folded) == []
    x = doubles(3, 4, 6, 6)
    torch.testing.assert_close(folded(x), centred.eval()(x), rtol=1e-10, atol=1e-10)


class Net(nn.Module):
    """Parts by name, and a forward pass given as a function of them."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def test_functional_forward_is_followed():
    def forward(net, x):
        x = torch.relu(net.norm(net.dropout(net.conv(x))))
        return net.head_norm(net.head(torch.flatten(x, 1)))

    net = Net(
        forward, norm=nn.BatchNorm2d(5), conv=nn.Conv2d(2, 5, 3), dropout=nn.Dropout2d(),
        head=nn.Linear(80, 4), head_norm=nn.BatchNorm1d(4),
    )  # fmt: skip
    assert_folds(net, doubles(3, 2, 6, 6))


def test_functional_flattening_is_followed():
    for flatten in (lambda x: torch.flatten(x, 1), lambda x: x.flatten(1)):
        net = Net(
            lambda net, x, flatten=flatten: net.head(flatten(net.norm(torch.relu(x)))),
            norm=nn.BatchNorm2d(2),
            head=nn.Linear(32, 4),
        )
        assert_folds(net, doubles(3, 2, 4, 4))


def test_norms_in_a_row_all_fold():
    before = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    assert_folds(before, doubles(3, 4))
    after = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 4), LpNorm1d(4))
    assert_folds(after, doubles(3, 4))


def test_residual_block_folds_inside_its_branch():
    def forward(net, x):
        y = torch.relu(net.norm1(net.conv1(x)))
        return torch.relu(net.norm2(net.conv2(y)) + net.shortcut(x))

    net = Net(
        forward, conv1=nn.Conv2d(3, 3, 3, padding=1), norm1=nn.BatchNorm2d(3),
        conv2=nn.Conv2d(3, 3, 3, padding=1), norm2=nn.BatchNorm2d(3),
        shortcut=nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)),
    )  # fmt: skip
    assert_folds(net, doubles(2, 3, 5, 5))


def test_preactivation_block_keeps_what_cannot_fold():
    def forward(net, x):
        y = net.conv1(torch.relu(net.norm1(x)))
        return x + net.conv2(torch.relu(net.norm2(y)))

    net = Net(
        forward, norm1=nn.BatchNorm2d(3), conv1=nn.Conv2d(3, 3, 3, padding=1),
        norm2=nn.BatchNorm2d(3), conv2=nn.Conv2d(3, 3, 3, padding=1),
    )  # fmt: skip
    _, message = assert_folds(net, doubles(2, 3, 5, 5), left=["norm1"])
    assert "relu" in message


def test_norm_after_a_branch_stays():
    def forward(net, x):
        y = net.layer(x)
        return torch.relu(net.norm(y)) + y

    net = Net(forward, layer=nn.Linear(3, 3), norm=nn.BatchNorm1d(3))
    _, message = assert_folds(net, doubles(4, 3), left=["norm"])
    assert "also used elsewhere" in message


def test_norm_reached_by_several_paths_stays():
    def forward(net, x):
        return torch.relu(net.norm(net.left(x) + net.right(x)))

    net = Net(forward, left=nn.Linear(3, 3), right=nn.Linear(3, 3), norm=nn.BatchNorm1d(3))
    _, message = assert_folds(net, doubles(4, 3), left=["norm"])
    assert "add" in message


def test_shared_norm_and_shared_layer_stay():
    norm = nn.BatchNorm1d(3)
    shared_norm = nn.Sequential(nn.Linear(3, 3), norm, nn.ReLU(), nn.Linear(3, 3), norm)
    _, message = assert_folds(shared_norm, doubles(4, 3), left=["1"])
    assert "called 2 times" in message
    layer = nn.Linear(3, 3)
    shared_layer = nn.Sequential(layer, nn.BatchNorm1d(3), nn.ReLU(), layer, nn.ReLU())
    assert_folds(shared_layer, doubles(4, 3), left=["1"])


@pytest.mark.parametrize("share", ["parameter", "storage", "read"])
def test_layer_with_a_tied_weight_is_left_alone(share):
    def forward(net, x):
        return net.other(torch.relu(net.norm(net.layer(x))))

    def reading(net, x):
        return nn.functional.linear(torch.relu(net.norm(net.layer(x))), net.layer.weight)

    net = Net(
        reading if share == "read" else forward,
        layer=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), other=nn.Linear(3, 3),
    ).double()  # fmt: skip
    if share == "parameter":
        net.other.weight = net.layer.weight
    elif share == "storage":
        net.other.weight.data = net.layer.weight.data
    _, message = assert_folds(net, doubles(4, 3), left=["norm"])
    assert ("outside of its call" if share == "read" else "tied") in message


def test_change_in_place_between_norm_and_layer_keeps_the_norm():
    def forward(net, x):
        x = torch.relu(x)
        y = net.norm(x)
        x += 1  # recorded as an addition that makes a new tensor
        return net.layer(y) + x

    net = Net(forward, norm=nn.BatchNorm1d(3), layer=nn.Linear(3, 3))
    assert_folds(net, doubles(4, 3), left=["norm"])


def test_layer_and_group_norm_are_left_without_a_warning():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.GroupNorm(2, 4))
    folded, message = assert_folds(model, doubles(3, 4))
    assert isinstance(folded[1], nn.LayerNorm)
    assert message == ""


def test_norm_without_running_statistics_stays():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))
    _, message = assert_folds(model, doubles(3, 4), left=["1"])
    assert "no running statistics" in message


def test_hooked_and_parametrized_layers_stay():
    hooked = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    hooked[0].register_forward_hook(lambda module, args, output: output * 2)
    assert "hooks" in assert_folds(hooked, doubles(3, 4), left=["1"])[1]
    normed = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.BatchNorm1d(4))
    assert "by weight_norm, which must" in assert_folds(normed, doubles(3, 4), left=["1"])[1]


def test_hook_between_layer_and_norm_keeps_the_norm():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    model[1].register_forward_hook(lambda module, args, output: output * 2)
    assert_folds(model, doubles(3, 4), left=["2"])


def test_layer_whose_forward_was_replaced_is_not_folded_into():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double()
    model[0].forward = torch.tanh
    assert_folds(model, doubles(3, 4), left=["1"])


def test_other_flattening_is_not_taken_for_that_of_all_positions():
    net = Net(
        lambda net, x: net.head(torch.flatten(net.norm(torch.relu(x)), 2)),
        norm=nn.BatchNorm2d(3),
        head=nn.Linear(36, 4),
    )
    assert_folds(net, doubles(2, 3, 6, 6), left=["norm"])


def test_subclass_with_its_own_forward_is_not_folded_into():
    class Doubling(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2 + x

    model = nn.Sequential(Doubling(4, 4), nn.BatchNorm1d(4))
    assert_folds(model, doubles(3, 4), left=["1"])


class Fused(nn.BatchNorm1d):
    def __init__(self, num_features):
        super().__init__(num_features)
        self.activation = nn.GELU()

    def forward(self, x):
        return self.activation(super().forward(x))


def test_fused_activation_stays_when_its_norm_folds():
    folded, _ = assert_folds(nn.Sequential(nn.Linear(4, 4), Fused(4)), doubles(3, 4))
    assert isinstance(folded[1][0], nn.GELU)
    assert_folds(nn.Sequential(nn.Tanh(), Fused(4), nn.Linear(4, 4)), doubles(3, 4), left=["1"])


def test_fused_activation_is_seen_where_it_does_nothing_yet():
    class Rectified(nn.BatchNorm1d):
        def forward(self, x):
            return torch.relu(super().forward(x))

    model = nn.Sequential(nn.Linear(4, 4), Rectified(4)).double()
    nn.init.constant_(model[1].bias, 1e3)  # every output of the norm is far above zero
    with pytest.warns(NormscopeWarning, match="Rectified does more than normalize"):
        folded = fold(model)
    assert norms_in(folded) == ["1"]


def test_channels_of_a_sequence_are_not_the_features_of_a_linear_layer():
    model = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(4), nn.Linear(5, 2))
    assert_folds(model, doubles(3, 4, 8), left=["1"])
    images = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm2d(4), nn.Linear(4, 4))
    assert_folds(images, doubles(3, 4, 4, 8), left=["1"])


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.body(x)
        return self.norm(self.layer(x)) if x.sum() > -1e9 else x


def test_untraceable_model_is_folded_inside_sequential_parts():
    folded, message = assert_folds(Untraceable(), doubles(3, 4), left=["norm"])
    assert type(folded.body[1]) is nn.Identity
    assert "cannot be traced" in message
    with pytest.warns(NormscopeWarning, match="called as a whole"):
        fold(nn.Sequential(nn.Linear(4, 4), PartUntraceable()))


class PartUntraceable(Untraceable):
    def __init__(self):
        super().__init__()
        del self.layer, self.norm

    def forward(self, x):
        return self.body(x) if x.sum() > -1e9 else x


class CallsPieces(Untraceable):
    """Uses a block's layer without its norm, and one layer in two containers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.Sequential(self.layer, nn.BatchNorm1d(4))
        self.block = Net(
            lambda net, x: net.norm(net.layer(x)), layer=nn.Linear(4, 4), norm=nn.BatchNorm1d(4)
        )

    def forward(self, x):
        x = self.norm(self.layer(self.body(x)))
        return self.block(x) + self.block.layer(x) if x.sum() > -1e9 else x


def test_untraceable_model_is_not_folded_where_pieces_may_be_called():
    _, message = assert_folds(CallsPieces(), doubles(3, 4), left=["norm.1", "block.norm"])
    assert "several places" in message


def test_sequential_with_an_untraceable_part_folds_around_it():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), Untraceable(), nn.Linear(4, 4), nn.BatchNorm1d(4)
    )
    assert_folds(model, doubles(3, 4), left=["2.norm"])


def test_optional_arguments_and_training_branches_do_not_hinder():
    class Optional(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x, scale=None, squash=False):
            x = self.norm(self.layer(x))
            if scale is not None:
                x = x * scale
            if self.training or squash:
                x = torch.tanh(x)
            return x

    assert_folds(Optional(), doubles(3, 4))


def test_list_of_modules_outside_the_registry_is_folded_too():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.order = [self.layer, self.norm]

        def forward(self, x):
            for module in self.order:
                x = module(x)
            return x

    folded, _ = assert_folds(Listed(), doubles(3, 4))
    assert type(folded.order[1]) is nn.Identity


def test_unused_norm_is_named():
    net = Net(lambda net, x: net.layer(x), layer=nn.Linear(3, 3), unused=nn.BatchNorm1d(3))
    assert_folds(net, doubles(4, 3), left=["unused"])


def test_norm_alone_stays():
    with pytest.warns(NormscopeWarning, match="the model itself"):
        assert is_batch_norm(fold(nn.BatchNorm1d(3)))


def test_folding_twice_is_folding_once():
    model = randomized(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU()))
    once = fold(model)
    twice = fold(once)
    assert str(twice) == str(once)
    assert all(map(torch.equal, once.state_dict().values(), twice.state_dict().values()))


def test_strict_raises_with_every_name():
    model = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3), nn.ReLU(), nn.BatchNorm1d(3))
    with pytest.raises(StateError, match=r"'1' .*'3' "):
        fold(model, strict=True)
    fold(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), strict=True)


def test_lazy_layer_is_refused():
    with pytest.raises(StateError, match="LazyLinear"):
        fold(nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3)))


def test_new_bias_follows_the_weight():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)).to(torch.bfloat16)
    model[0].weight.requires_grad_(False)
    bias = fold(model)[0].bias
    assert isinstance(bias, nn.Parameter)
    assert bias.dtype == torch.bfloat16
    assert not bias.requires_grad


OFFSET = torch.ones(3, dtype=torch.float64)


class Masked(nn.Module):
    """Norm and linear layer meet only where the mask is given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x, mask=None, sizes=(1, 2), offset=OFFSET):
        if mask is None:
            return self.norm(torch.relu(self.layer(x))) + offset
        return self.norm(self.layer(x)) * mask


def test_branch_on_an_optional_argument_is_that_of_its_default():
    assert_folds(Masked(), doubles(4, 3), left=["norm"])


def test_optional_argument_that_hinders_is_not_left_open():
    class Untraced(Masked):
        def forward(self, x, mask=None):
            if mask is None and x.sum() < torch.inf:
                return self.norm(torch.relu(self.layer(x)))
            return self.norm(self.layer(x))

    assert_folds(Untraced(), doubles(4, 3), left=["norm"])


@pytest.mark.parametrize("is_tensor", [torch.is_tensor, lambda x: isinstance(x, torch.Tensor)])
def test_branch_on_tensors_is_taken(is_tensor):
    def forward(net, x):
        x = net.layer(x)
        x = torch.relu(x) if is_tensor(x) else x
        y = net.norm(x)
        return torch.cat([y, y[:, :1]], 1).view(y.shape[0], -1)

    net = Net(forward, layer=nn.Linear(3, 3), norm=nn.BatchNorm1d(3))
    assert_folds(net, doubles(4, 3), left=["norm"])


READS = {
    "parameters": lambda net: sum(p.square().sum() for p in net.layer.parameters()),
    "number": lambda net: net.layer.weight.sum().item(),
    "norm": lambda net: net.norm.running_mean.mean(),
    "operand": lambda net: net.layer.bias,
    "slice": lambda net: net.layer.weight[0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_layer_whose_tensors_the_forward_pass_uses_itself_is_left_alone(read):
    def forward(net, x):
        return net.norm(net.layer(x)) * read(net)

    net = Net(forward, layer=nn.Linear(3, 3), norm=nn.BatchNorm1d(3))
    _, message = assert_folds(net, doubles(4, 3), left=["norm"])
    assert "outside of its call" in message


def test_dtype_and_shape_of_a_weight_may_be_asked():
    def forward(net, x):
        x = x.to(net.layer.weight.dtype)
        return net.norm(net.layer(x)) if net.layer.weight.shape[0] == 3 else x

    assert_folds(Net(forward, layer=nn.Linear(3, 3), norm=nn.BatchNorm1d(3)), doubles(4, 3))


def test_following_the_forward_pass_draws_no_random_numbers():
    net = Net(
        lambda net, x: net.norm(net.layer(x)) + 0 * torch.rand(3),
        layer=nn.Linear(3, 3),
        norm=nn.BatchNorm1d(3),
    )
    state = torch.get_rng_state()
    fold(net)
    assert state.equal(torch.get_rng_state())


ALTERED = {
    "weight": lambda n, x: nn.functional.batch_norm(
        x, n.running_mean, n.running_var, n.weight.abs(), n.bias, False, 0.1, n.eps
    ),
    "bias": lambda n, x: nn.functional.batch_norm(
        x, n.running_mean, n.running_var, n.weight, n.bias.relu(), False, 0.1, n.eps
    ),
    "mean": lambda n, x: nn.functional.batch_norm(
        x, n.running_mean.abs(), n.running_var, n.weight, n.bias, False, 0.1, n.eps
    ),
    "variance": lambda n, x: nn.functional.batch_norm(
        x, n.running_mean, n.running_var.square(), n.weight, n.bias, False, 0.1, n.eps
    ),
}


@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("altered", ALTERED.values(), ids=ALTERED)
def test_norm_that_alters_its_parameters_stays(altered, features):
    class Altered(nn.BatchNorm1d):
        def forward(self, x):
            return altered(self, x)

    model = nn.Sequential(nn.Linear(3, features), Altered(features))
    _, message = assert_folds(model, doubles(4, 3), left=["1"])
    assert "does more than normalize" in message


def test_other_than_a_module_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"fold expects an nn\.Module, got the string 'x'"):
        fold("x")


def test_linear_layer_and_norm_of_sequences_are_refused_or_kept():
    x = doubles(3, 4, 5)
    before = randomized(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU())).double()
    after = randomized(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(5, 4))).double()
    after[1] = nn.Linear(4, 4).double()
    for model, given in ((before, x), (after, x[..., :4])):
        folded = fold(model)
        assert norms_in(folded) == []
        with pytest.raises(ShapeError, match="folded here for vectors"):
            folded(given)
        with pytest.warns(NormscopeWarning, match="folded here for vectors"):
            kept = fold(model, inputs=given)
        torch.testing.assert_close(kept(given), model.eval()(given))


def test_convolution_and_norm_of_one_unbatched_sequence_are_refused():
    model = randomized(nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4))).double().eval()
    x = doubles(2, 4)
    assert model(x).shape == (4, 4)  # channels as samples, positions as channels
    with pytest.raises(ShapeError, match="folded here for sequences"):
        fold(model)(x)


def test_check_of_the_dimensions_survives_pickling_scripting_and_tracing():
    layers = nn.Linear(5, 4), Fused(4), nn.Linear(4, 3), nn.BatchNorm1d(3)
    folded = fold(randomized(nn.Sequential(*layers)))
    assert norms_in(folded) == []
    copies = [copy.deepcopy(folded), pickle.loads(pickle.dumps(folded))]
    for each in (*copies, torch.fx.symbolic_trace(folded), script(folded)):
        torch.testing.assert_close(each(torch.ones(2, 5)), folded(torch.ones(2, 5)))
    with pytest.raises(ShapeError, match="vectors"):
        copies[1](torch.ones(2, 4, 5))


def script(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(model)


def by_type(net, x):
    return net.norm(torch.relu(x) if type(x) is torch.Tensor else x)


def by_attribute(net, x):
    return net.norm(x if hasattr(x, "traced_node") else x.sin())


@pytest.mark.parametrize("branch", [by_type, by_attribute])
def test_branch_that_tracing_takes_otherwise_keeps_the_norm(branch):
    net = Net(
        lambda net, x: net.head(torch.relu(net.head_norm(net.first(branch(net, net.layer(x)))))),
        layer=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), first=nn.Linear(5, 6),
        head_norm=nn.BatchNorm1d(6), head=nn.Linear(6, 2),
    )  # fmt: skip
    _, message = assert_folds(net, doubles(3, 4), left=["norm"])
    assert "changes the outputs" in message


def test_norm_whose_attributes_the_forward_pass_reads_stays():
    net = Net(
        lambda net, x: net.norm(net.layer(x)) / net.norm.num_features,
        layer=nn.Linear(4, 5),
        norm=nn.BatchNorm1d(5),
    )
    assert "no attribute 'num_features'" in assert_folds(net, doubles(3, 4), left=["norm"])[1]


def test_model_that_keeps_an_activation_with_its_graph_is_folded():
    def forward(net, x):
        net.cache = net.layer(x)
        return net.norm(net.cache)

    net = randomized(Net(forward, layer=nn.Linear(4, 5), norm=nn.BatchNorm1d(5))).double().eval()
    x = doubles(3, 4)
    expected, cache = net(x), net.cache
    assert cache.grad_fn is not None
    folded = fold(net, strict=True)
    assert net.cache is cache
    assert norms_in(folded) == []
    torch.testing.assert_close(folded(x), expected, rtol=1e-10, atol=1e-10)


def test_model_that_cannot_be_copied_is_refused_in_a_sentence():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    net.lock = threading.Lock()
    with pytest.raises(StateError, match=r"copy.deepcopy cannot make \(cannot pickle"):
        fold(net)


@pytest.mark.parametrize("pre", [False, True])
def test_hooks_of_all_modules_keep_every_norm(pre):
    registry = nn.modules.module
    if pre:
        handle = registry.register_module_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    else:
        handle = registry.register_module_forward_hook(lambda module, inputs, output: output + 1)
    try:
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        assert "hooks of all modules" in assert_folds(net, doubles(3, 4), left=["1"])[1]
    finally:
        handle.remove()


def test_patched_class_is_not_folded_into(monkeypatch):
    plain = nn.Linear.forward

    @functools.wraps(plain)
    def patched(self, x):
        return plain(self, x).relu()

    monkeypatch.setattr(nn.Linear, "forward", patched)
    assert_folds(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), doubles(3, 4), left=["1"])


class Unguessable(nn.Module):
    """Takes images of one size that nobody would guess."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)
        self.head = nn.Linear(3 * 7 * 11, 2)

    def forward(self, x, scale):
        return self.head(self.norm(self.conv(x * scale)).flatten(1))


def test_outputs_that_cannot_be_compared_are_said_to_be():
    model = randomized(Unguessable()).double().eval()
    with pytest.warns(NormscopeWarning, match="were not compared .* give inputs="):
        fold(model)
    with pytest.raises(StateError, match="were not compared"):
        fold(model, strict=True)
    x, scale = doubles(3, 2, 7, 11), doubles(3, 1, 1, 1)
    for inputs in ((x, scale), {"scale": scale, "x": x}):
        folded = fold(model, strict=True, inputs=inputs)
        torch.testing.assert_close(folded(x, scale), model(x, scale), rtol=1e-10, atol=1e-10)


def test_inputs_that_do_not_fit_are_refused_in_a_sentence():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    with pytest.raises(MisfitError, match=r"the data does not fit the model: layer '0' \(Linear\)"):
        fold(model, inputs=torch.ones(2, 3))


class Watched(nn.Module):
    """Draws random numbers and counts its calls: a copy, too, counts those in the original."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.register_buffer("total", torch.zeros(()))
        self.calls = []
        self.count = lambda: (self.calls.append(1), self.total.add_(1))

    def forward(self, x):
        self.count()
        torch.rand(3)
        return self.norm(self.layer(x))


def test_comparison_leaves_the_model_and_the_generators_alone():
    model = Watched()
    before, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    fold(model, strict=True)
    assert model.calls == []
    assert model.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_half_precision_is_compared_in_double():
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    folded = fold(randomized(model).to(torch.bfloat16), strict=True)
    assert folded[0].weight.dtype is torch.bfloat16
    assert norms_in(folded) == []


class Single(nn.Sequential):
    def forward(self, x):
        return super().forward(x.float())


def test_model_that_insists_on_single_precision_is_compared_in_it():
    model = randomized(Single(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)))
    assert norms_in(fold(model, strict=True)) == []


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_layers_compiled_by_torch_jit_are_kept():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    compiled = torch.jit.script(model)
    with pytest.warns(NormscopeWarning, match="fold leaves '1'"):
        folded = fold(compiled)
    assert torch.equal(folded(torch.ones(2, 3)), model(torch.ones(2, 3)))
