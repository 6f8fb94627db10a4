"""Every kind of layer against wide random networks of torch: terms of the bound, layer by layer."""

import pytest
import torch
from tests.references.meanfield import module_terms
from torch import nn
from torch.nn import functional

from normscope.meanfield import predict

TOLERANCE = 0.15


def initialized(model, seed=0, weight_variance=2.0, bias_variance=0.3):
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            fan_in = module.weight[0].numel()
            std = (weight_variance / fan_in) ** 0.5
            nn.init.normal_(module.weight, std=std, generator=generator)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=bias_variance**0.5, generator=generator)
    return model


def agree(make, shape, samples=80, seeds=4, tolerance=TOLERANCE, floor=0.02):
    """Compare terms with those of a few networks; small ones to a part of the sum.

    The theory takes each network's own variances: a few dozen biases have another one than asked.
    """
    measured, theory = 0.0, 0.0
    for seed in range(seeds):
        model = initialized(make(), seed)
        draws = torch.Generator().manual_seed(seed + 100)
        first, second = (torch.randn(samples, *shape, generator=draws) for _ in range(2))
        measured = measured + torch.tensor(module_terms(model, first, second)) / seeds
        found = predict(model, shape)
        theory = theory + torch.tensor([row.term for row in found.layers]) / seeds
    off = (theory - measured).abs() - floor * float(theory.sum())
    assert torch.all(off < tolerance * theory), f"{theory.tolist()} against {measured.tolist()}"
    return found


def chain(*modules):
    return lambda: nn.Sequential(*(make() for make in modules))


def layer(kind, *arguments, **options):
    return lambda: kind(*arguments, **options)


def test_linear_layers_with_layer_norm():
    block = (layer(nn.LayerNorm, 400), nn.ReLU)
    agree(
        chain(
            layer(nn.Linear, 100, 400),
            *block,
            layer(nn.Linear, 400, 400),
            *block,
            layer(nn.Linear, 400, 5),
        ),
        (100,),
    )


@pytest.mark.parametrize("kind", [nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid, layer(nn.LeakyReLU, 0.2)])
def test_activations_without_normalization(kind):
    agree(
        chain(
            layer(nn.Linear, 100, 400),
            kind,
            layer(nn.Linear, 400, 400),
            kind,
            layer(nn.Linear, 400, 5),
        ),
        (100,),
    )


def test_batch_norm_with_shift_moves_the_mean_activation():
    def make():
        model = nn.Sequential(
            nn.Linear(100, 400),
            nn.BatchNorm1d(400),
            nn.ReLU(),
            nn.Linear(400, 400),
            nn.BatchNorm1d(400),
            nn.ReLU(),
            nn.Linear(400, 5),
        )
        nn.init.constant_(model[1].bias, 0.7)
        nn.init.constant_(model[4].bias, -0.5)
        return model

    agree(make, (100,), tolerance=0.05)


def test_batch_norm_of_tanh_with_shift_has_a_direction():
    def make():
        model = nn.Sequential(
            nn.Linear(100, 400), nn.BatchNorm1d(400), nn.Tanh(), nn.Linear(400, 5)
        )
        nn.init.constant_(model[1].bias, 0.5)
        return model

    assert agree(make, (100,), tolerance=0.05).regime == "head"


def test_dropout_leaves_mean_directions_alone():
    agree(
        chain(
            layer(nn.Linear, 100, 400),
            nn.ReLU,
            layer(nn.Dropout, 0.3),
            layer(nn.Linear, 400, 400),
            nn.ReLU,
            layer(nn.Dropout, 0.3),
            layer(nn.Linear, 400, 5),
        ),
        (100,),
        samples=600,
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 1}, {"groups": 2}],
    ids=["plain", "padded", "strided", "dilated", "grouped"],
)
def test_convolutions_without_normalization(options):
    probe = nn.Conv2d(4, 4, 3, **{k: v for k, v in options.items() if k != "groups"})
    size = probe(torch.zeros(1, 4, 6, 6)).shape[-1]
    agree(
        chain(
            layer(nn.Conv2d, 4, 128, 3, padding=1),
            nn.ReLU,
            layer(nn.Conv2d, 128, 128, 3, **options),
            nn.ReLU,
            nn.Flatten,
            layer(nn.Linear, 128 * size * size, 5),
        ),
        (4, 6, 6),
    )


def test_convolution_over_one_and_three_dimensions():
    agree(
        chain(
            layer(nn.Conv1d, 4, 128, 3, padding=1),
            nn.ReLU,
            layer(nn.Conv1d, 128, 128, 3),
            nn.ReLU,
            nn.Flatten,
            layer(nn.Linear, 128 * 8, 5),
        ),
        (4, 10),
    )
    agree(
        chain(
            layer(nn.Conv3d, 2, 32, 2),
            nn.ReLU,
            layer(nn.Conv3d, 32, 128, 2),
            nn.ReLU,
            nn.Flatten,
            layer(nn.Linear, 128 * 8, 5),
        ),
        (2, 4, 4, 4),
    )


@pytest.mark.parametrize(
    "norm", [layer(nn.BatchNorm2d, 128), nn.Identity, layer(nn.GroupNorm, 2, 128)]
)
def test_global_average_pooling(norm):
    agree(
        chain(
            layer(nn.Conv2d, 4, 128, 3, padding=1),
            norm,
            nn.ReLU,
            layer(nn.Conv2d, 128, 128, 3, stride=2, padding=1),
            norm,
            nn.ReLU,
            layer(nn.AdaptiveAvgPool2d, 1),
            nn.Flatten,
            layer(nn.Linear, 128, 5),
        ),
        (4, 6, 6),
    )


def test_average_pooling_between_convolutions():
    agree(
        chain(
            layer(nn.Conv2d, 4, 128, 3, padding=1),
            nn.ReLU,
            layer(nn.AvgPool2d, 2),
            layer(nn.Conv2d, 128, 128, 3, padding=1),
            nn.ReLU,
            nn.Flatten,
            layer(nn.Linear, 128 * 9, 5),
        ),
        (4, 6, 6),
    )


@pytest.mark.parametrize("norm", [layer(nn.BatchNorm2d, 128), nn.Identity])
def test_max_pooling(norm):
    agree(
        chain(
            layer(nn.Conv2d, 4, 128, 3, padding=1),
            norm,
            nn.ReLU,
            layer(nn.MaxPool2d, 2),
            layer(nn.Conv2d, 128, 128, 3, padding=1),
            norm,
            nn.ReLU,
            layer(nn.MaxPool2d, 2),
            nn.Flatten,
            layer(nn.Linear, 128 * 4, 5),
        ),
        (4, 8, 8),
        tolerance=0.2,
    )


class Residual(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.stem = nn.Linear(100, 300)
        self.norms = nn.ModuleList(norm() for _ in range(3))
        self.inner = nn.ModuleList(nn.Linear(300, 300) for _ in range(2))
        self.head = nn.Linear(300, 5)

    def forward(self, x):
        x = self.stem(x)
        for norm, linear in zip(self.norms, self.inner, strict=False):
            x = x + linear(functional.relu(norm(x)))
        return self.head(torch.relu(self.norms[2](x)))


@pytest.mark.parametrize(
    "norm", [nn.Identity, layer(nn.LayerNorm, 300), layer(nn.BatchNorm1d, 300)]
)
def test_residual_addition_in_a_forward_function(norm):
    agree(lambda: Residual(norm), (100,))
