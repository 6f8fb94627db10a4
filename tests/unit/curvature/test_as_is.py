"""Mode "as_is": curvature of networks of which some modules are in eval mode."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.unit.curvature.networks import randomized
from torch import Tensor, nn

from normscope.curvature import KINDS, dense, operator, spectrum, top_eigenvalue, trace
from normscope.curvature.chains import chain_jacobian
from normscope.errors import UnknownNameError
from normscope.layers import BatchNorm1d, LpNorm1d, NoisyBatchNorm1d
from normscope.problem import parameter_layout

CHOICES = ("fisher", "ggn", "hessian")


class Residual(nn.Module):
    """Not a chain: one norm layer inside a branch, dropout by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.branch = nn.Sequential(nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = nn.functional.dropout(x + self.branch(x), 0.3, self.head.training)
        return self.head(x)


def chain(norm: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    layers = [nn.Linear(3, 4), norm(4), nn.Tanh(), nn.Linear(4, 4), norm(4), nn.Tanh()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(4, 2))


def images() -> nn.Sequential:
    first = [nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 3, 2)]
    return nn.Sequential(*first, nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2))


# the modules in eval mode of each network; all others are in train mode
MIXED = {
    "first norm": (chain, ["1", "6"]),
    "last norm": (chain, ["4", "6"]),
    "every norm": (chain, ["1", "4", "6"]),
    "ours": (lambda: chain(BatchNorm1d), ["1", "6"]),
    "noise off": (lambda: chain(NoisyBatchNorm1d), ["1", "4", "6"]),
    "convolutions": (images, ["1"]),
    "lp": (lambda: chain(LpNorm1d), ["4", "6"]),
    "branch": (Residual, ["branch.2", "head"]),
    "stem": (Residual, ["stem.1", "head"]),
}
CHAINS = ("first norm", "last norm", "every norm", "ours", "noise off", "convolutions")


def mixed(name: str) -> nn.Module:
    make, held = MIXED[name]
    model = randomized(make()).train()
    for each in held:
        model.get_submodule(each).eval()
    return model


def data(name: str) -> tuple[Tensor, Tensor]:
    shape = (9, 1, 3, 3) if name == "convolutions" else (9, 3)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64), torch.arange(9) % 2


def reference(model: nn.Module, batch: tuple[Tensor, Tensor], kind: str) -> Tensor:
    """The matrix by plain autograd on a copy, which has the same flags."""
    twin = copy.deepcopy(model)
    parameters, (inputs, targets) = list(twin.parameters()), batch
    output = twin(inputs)
    loss = nn.functional.cross_entropy(output, targets)

    def rows(values: Tensor) -> Tensor:
        found = [
            torch.autograd.grad(each, parameters, retain_graph=True, materialize_grads=True)
            for each in values.flatten()
        ]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in found])

    if kind == "hessian":
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        return rows(torch.cat([each.flatten() for each in first]))
    jacobian = rows(output)
    if kind == "fisher":
        return jacobian.T @ jacobian / len(inputs)
    shares = output.detach().softmax(1)
    blocks = [torch.diag(each) - torch.outer(each, each) for each in shares]
    return jacobian.T @ torch.block_diag(*blocks) @ jacobian / len(inputs)


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("name", MIXED)
def test_matrix_is_that_of_plain_autograd_with_the_same_flags(name, kind):
    model, batch = mixed(name), data(name)
    expected = reference(model, batch, kind)
    scale = expected.abs().max()
    found = dense(model, "cross_entropy", batch, kind=kind, mode="as_is")
    assert (found - expected).abs().max() < 1e-8 * scale
    assert (dense(model, "cross_entropy", batch, kind=kind) - expected).abs().max() > 1e-3 * scale
    top = top_eigenvalue(model, "cross_entropy", batch, kind=kind, mode="as_is", tol=1e-9)
    assert abs(top.value / torch.linalg.eigvalsh(expected)[-1] - 1) < 1e-8
    assert top.mode == "as_is"


@pytest.mark.parametrize("name", MIXED)
def test_which_networks_are_chains(name):
    model, batch = mixed(name), data(name)
    found = chain_jacobian(model, batch[0], "as_is", parameter_layout(model))
    assert (found is not None) == (name in CHAINS)


def test_every_measurement_takes_the_mode():
    model, batch = mixed("first norm"), data("first norm")
    expected = reference(model, batch, "ggn")
    options = {"kind": "ggn", "mode": "as_is"}
    size = len(expected)
    density = spectrum(model, "cross_entropy", batch, probes=40, lanczos_steps=size, **options)
    assert float(density["moment"].sel(order=1)) * size == pytest.approx(
        float(expected.trace()), rel=0.2
    )
    found = trace(model, "cross_entropy", batch, **options)
    assert found.value == pytest.approx(float(expected.trace()), rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_as_is_is_the_mode_of_a_model_that_is_all_in_it(kind, mode):
    model = randomized(images()).train(mode == "train")
    batch = data("convolutions")
    found, forced = (
        dense(model, "cross_entropy", batch, kind=kind, mode=each) for each in ("as_is", mode)
    )
    assert torch.equal(found, forced)


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_other_modes_set_every_flag(mode):
    batch = data("stem")
    forced, plain = mixed("first norm"), randomized(chain()).train()
    plain.load_state_dict(forced.state_dict())
    assert torch.equal(
        *(dense(each, "cross_entropy", batch, mode=mode) for each in (forced, plain))
    )


@pytest.mark.parametrize("name", ["first norm", "branch"])
def test_operator_keeps_the_flags_from_when_it_was_made(name):
    model, batch = mixed(name), data(name)
    matrix = operator(model, "cross_entropy", [batch, batch], mode="as_is")
    vector = torch.linspace(-1, 1, matrix.shape[0], dtype=torch.float64)
    before = matrix @ vector
    model.train()
    assert torch.equal(matrix @ vector, before)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", MIXED)
def test_flags_and_buffers_are_left_as_they_are(name):
    model = mixed(name)
    flags = [module.training for module in model.modules()]
    before = copy.deepcopy(model.state_dict())
    top_eigenvalue(model, "cross_entropy", data(name), mode="as_is")
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_unknown_mode_is_named():
    with pytest.raises(UnknownNameError, match=r"as is.*as_is"):
        operator(mixed("stem"), "cross_entropy", data("stem"), mode="as is")
