"""Hessians of large batches, which are multiplied part by part where samples are independent."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.curvature import operator, top_eigenvalue

SAMPLES = 64


class Wide(nn.Module):
    """A network with so many activations that parts of the batch are worth their check."""

    def __init__(self, mix=None):
        super().__init__()
        self.first, self.last = nn.Linear(2, 32768), nn.Linear(16, 3)
        self.mix = nn.Identity() if mix is None else mix

    def forward(self, x):
        hidden = torch.tanh(self.first(self.mix(x)))
        pooled = (hidden * hidden.sin()).view(len(x), 16, -1).mean(2)
        return self.last(8 * pooled)


class Centred(nn.Module):
    """Subtracts the mean over the batch, if that is large enough."""

    def __init__(self, least):
        super().__init__()
        self.least = least

    def forward(self, x):
        return x - x.mean(0) if len(x) > self.least else x


class Zero(nn.Module):
    """Adds nothing, with a derivative through the statistics of the batch."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x):
        mean = (x * self.scale).mean(0)
        return x * self.scale + mean - mean.detach()


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(SAMPLES) % 3


def plain_product(model, loss, batch, vector):
    twin = copy.deepcopy(model)
    parameters = list(twin.parameters())
    torch.manual_seed(0)
    value = loss(twin(batch[0]), batch[1])
    gradients = torch.autograd.grad(value, parameters, create_graph=True)
    pieces = vector.split([p.numel() for p in parameters])
    along = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
    products = torch.autograd.grad(gradients, parameters, along)
    return torch.cat([product.reshape(-1) for product in products])


def random_vector(size):
    return torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


LOSSES = {
    "plain": functional.cross_entropy,
    "weighted": nn.CrossEntropyLoss(torch.tensor([0.2, 1.0, 3.0]).double(), ignore_index=1),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_large_batch_of_independent_samples_is_multiplied_in_parts(name):
    torch.manual_seed(0)
    model, loss = Wide().double(), LOSSES[name]
    matrix = operator(model, loss, data(), kind="hessian")
    vector = random_vector(matrix.shape[0])
    torch.testing.assert_close(matrix @ vector, plain_product(model, loss, data(), vector))


def seen_rows(model, loss, batch):
    """The sizes of the batches on which an operator runs the model."""
    rows = []
    handle = model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    operator(model, loss, batch, kind="hessian")
    handle.remove()
    return rows


def test_parts_are_used_only_where_they_save_memory():
    model, (inputs, labels) = Wide().double(), data()
    assert seen_rows(model, "cross_entropy", (inputs, labels)).count(SAMPLES // 4) == 4
    few = inputs[:16], labels[:16]
    assert set(seen_rows(model, "cross_entropy", few)) <= {1, 2, 4, 16}
    small = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Unflatten(1, (2, 4)), nn.Flatten())
    assert SAMPLES // 4 not in seen_rows(small.double(), "cross_entropy", (inputs, labels))


@pytest.mark.parametrize(
    "mix",
    [nn.BatchNorm1d(2), Centred(least=1), Centred(least=32), Zero(), nn.Dropout(0.4)],
    ids=["batch norm", "centred", "centred if large", "in the derivative alone", "dropout"],
)
def test_dependent_samples_are_not_separated(mix):
    torch.manual_seed(0)
    model = Wide(mix).double()
    matrix = operator(model, "cross_entropy", data(), kind="hessian")
    vector = random_vector(matrix.shape[0])
    expected = plain_product(model, functional.cross_entropy, data(), vector)
    torch.testing.assert_close(matrix @ vector, expected)


def test_loss_of_all_samples_together_is_not_separated():
    torch.manual_seed(0)
    model = Wide().double()

    def loss(output, target):
        return functional.cross_entropy(output - output.mean(0), target)

    matrix = operator(model, loss, data(), kind="hessian")
    vector = random_vector(matrix.shape[0])
    torch.testing.assert_close(matrix @ vector, plain_product(model, loss, data(), vector))


def test_top_eigenvalue_of_parts_is_that_of_the_batch():
    torch.manual_seed(0)
    model, (inputs, labels) = Wide(), data()
    batch = inputs.float(), labels
    found = top_eigenvalue(model, "cross_entropy", batch, kind="hessian")
    vector = found.vectors[:, 0].double()
    image = plain_product(model.double(), functional.cross_entropy, data(), vector)
    assert float(vector @ image) == pytest.approx(found.value, rel=1e-5)
    assert float((image - found.value * vector).norm()) <= 2e-3 * found.value
