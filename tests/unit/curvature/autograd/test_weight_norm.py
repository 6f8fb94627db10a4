"""Weight normalization, whose second derivative is wrong in PyTorch."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as by_hook

from normscope.curvature import dense, spectrum, top_eigenvalue, trace


def old(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return by_hook(*arguments, **options)


KINDS = {"parametrization": parametrizations.weight_norm, "hook": old}


class WrittenOut(nn.Module):
    """A linear layer or convolution with the weight g v / |v|, of plain operations."""

    def __init__(self, layer, length, v, dim):
        super().__init__()
        self.apply_weight = functional.linear if isinstance(layer, nn.Linear) else functional.conv1d
        self.bias, self.length, self.v = layer.bias, nn.Parameter(length), nn.Parameter(v)
        self.dims = [d for d in range(v.dim()) if d != dim]

    def forward(self, x):
        norm = self.v.square().sum(self.dims, keepdim=True).sqrt()
        return self.apply_weight(x, self.v * self.length / norm, self.bias)


def written_out(layer, dim):
    if hasattr(layer, "parametrizations"):
        parts = layer.parametrizations.weight
        return WrittenOut(layer, parts.original0.detach(), parts.original1.detach(), dim)
    return WrittenOut(layer, layer.weight_g.detach(), layer.weight_v.detach(), dim)


def network(normed, dim):
    """A net with two normed layers, and the same function of plain operations."""
    torch.manual_seed(0)
    first = normed(nn.Conv1d(2, 3, 2), dim=dim).double()
    last = normed(nn.Linear(6, 3), dim=dim).double()
    between = nn.Tanh(), nn.Flatten()
    model = nn.Sequential(first, *between, last)
    return model, nn.Sequential(written_out(first, dim), *between, written_out(last, dim))


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(9, 2, 3, generator=generator, dtype=torch.float64), torch.arange(9) % 3


def reference(plain):
    inputs, targets = data()
    names, parameters = zip(*plain.named_parameters(), strict=True)

    def loss(*values):
        output = functional_call(plain, dict(zip(names, values, strict=True)), inputs)
        return functional.cross_entropy(output, targets)

    blocks = hessian(loss, parameters)
    rows = zip(blocks, (p.numel() for p in parameters), strict=True)
    return torch.cat([torch.cat([b.reshape(size, -1) for b in row], 1) for row, size in rows])


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("normed", KINDS)
def test_hessian_is_that_of_the_written_out_weight(normed, dim):
    model, plain = network(KINDS[normed], dim)
    expected = torch.linalg.eigvalsh(reference(plain))
    batch = data()
    found = dense(model, "cross_entropy", batch, "hessian")
    torch.testing.assert_close(found, found.T)
    torch.testing.assert_close(torch.linalg.eigvalsh(found), expected, atol=1e-10, rtol=1e-8)
    top = top_eigenvalue(model, "cross_entropy", batch, "hessian", tol=1e-6)
    assert top.value == pytest.approx(float(expected[-1]), rel=1e-9)
    total = trace(model, "cross_entropy", batch, "hessian", products=100)
    assert total.value == pytest.approx(float(expected.sum()), rel=1e-9)
    nodes = spectrum(model, "cross_entropy", batch, "hessian", probes=2)["nodes"]
    assert float(nodes.max()) == pytest.approx(float(expected[-1]), rel=1e-9)


@pytest.mark.parametrize("normed", KINDS)
def test_model_has_its_own_weight_norm_afterwards(normed):
    model, _ = network(KINDS[normed], 0)
    before = [(copy.copy(vars(m)), dict(m._forward_pre_hooks)) for m in model.modules()]
    dense(model, "cross_entropy", data(), "hessian")
    after = [(vars(m), dict(m._forward_pre_hooks)) for m in model.modules()]
    assert before == after
