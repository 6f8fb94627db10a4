"""Layers and models that a mode must reach, though they go their own ways."""

from __future__ import annotations

import copy
import random
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normscope import whole_loss
from normscope.curvature import operator, top_eigenvalue
from normscope.errors import StateError
from normscope.problem import in_mode, isolated


def data(samples: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    return x, torch.arange(samples) % 2


def net(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2)).double()


def product(model: nn.Module, mode: str = "train", kind: str = "hessian") -> Tensor:
    matrix = operator(model, "cross_entropy", data(), kind=kind, mode=mode)
    return matrix @ torch.linspace(-1, 1, matrix.shape[0], dtype=torch.float64)


class OwnSyncBatchNorm(nn.SyncBatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        return torch.tanh(nn.functional.batch_norm(input, None, None, training=True))


class SameByFunctions(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return torch.tanh(nn.functional.batch_norm(input, None, None, training=True))


def test_subclass_of_sync_batch_norm_keeps_its_own_forward() -> None:
    expected = product(net(SameByFunctions()))
    model = net(OwnSyncBatchNorm(4, affine=False))
    torch.testing.assert_close(product(model), expected)


def test_sync_batch_norm_does_not_wait_for_other_processes() -> None:
    """Of a group that this process is not in, whose size is -1, it takes no statistics."""
    layers = nn.SyncBatchNorm(4), OwnSyncBatchNorm(4)
    model = nn.Sequential(*layers)
    with isolated(model), in_mode(model, "train"):
        groups = [layer.process_group for layer in layers]
        assert [torch.distributed.get_world_size(group) for group in groups] == [-1, -1]
    assert [layer.process_group for layer in layers] == [None, None]


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
@pytest.mark.parametrize("kind", ["fisher", "hessian"])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_checkpointed_model_has_the_curvature_of_the_model(
    mode: str, kind: str, norm: type[nn.Module]
) -> None:
    model = net(norm(4))
    expected = product(model, mode, kind)
    torch.testing.assert_close(product(Checkpointed(model), mode, kind), expected)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 12)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x[:, None, :, None]).chunk(3, 3)  # one head
        return nn.functional.scaled_dot_product_attention(query, key, value).mean(3).squeeze(1)


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_checkpointed_attention_has_the_curvature_of_the_model(kind: str) -> None:
    torch.manual_seed(0)
    parts = nn.Linear(3, 4).double(), Attending().double(), nn.Linear(4, 2).double()
    expected = product(nn.Sequential(*parts), kind=kind)
    checkpointed = nn.Sequential(parts[0], Checkpointed(parts[1]), parts[2])
    torch.testing.assert_close(product(checkpointed, kind=kind), expected)


def test_frozen_mode_takes_half_precision() -> None:
    model = net(nn.BatchNorm1d(4)).to(torch.bfloat16)
    x, y = data()
    matrix = operator(model, "cross_entropy", (x.bfloat16(), y), kind="hessian", mode="frozen")
    assert (matrix @ torch.ones(matrix.shape[0], dtype=torch.bfloat16)).isfinite().all()


def test_wrong_second_derivative_is_an_error_not_a_number() -> None:
    """The gradient of this operation is right, the derivative of its gradient is not."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y.detach(), g * x  # the first loses its derivative in y

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return Wrong.apply(self.one(x), self.other(x))

    torch.manual_seed(0)
    model = nn.Sequential(Gated(), nn.Linear(4, 2)).double()
    with pytest.raises(StateError, match="backward pass of Wrong is not differentiable"):
        top_eigenvalue(model, "cross_entropy", data(), kind="hessian", tol=1e-6)


def test_random_loss_is_fixed_by_the_seed_and_draws_nothing_of_the_users() -> None:
    class Dropped(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return nn.functional.dropout(output, 0.5).logsumexp(1).mean() + output[:, 0].mean()

    model, (x, y) = net(nn.BatchNorm1d(4)), data()
    before = torch.random.get_rng_state()
    matrix = operator(model, Dropped(), [(x[:4], y[:4]), (x[4:], y[4:])], kind="ggn")
    vector = torch.ones(matrix.shape[0], dtype=torch.float64)
    assert torch.equal(matrix @ vector, matrix @ vector)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
def test_model_that_draws_from_numpy_and_python_leaves_their_states(kind: str) -> None:
    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + np.random.rand() + random.random())  # noqa: NPY002 - as models do

    model = nn.Sequential(nn.Linear(3, 4), Drawing(), nn.Linear(4, 2)).double()
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    top_eigenvalue(model, "cross_entropy", data(), kind=kind)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_whole_loss_that_overwrites_its_batch_leaves_the_data_alone() -> None:
    def overwriting(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(model(x.clone()), y)
        x.zero_()
        return loss

    x, y = data()
    expected = x.clone()
    operator(net(nn.BatchNorm1d(4)), whole_loss(overwriting), (x, y), kind="hessian")
    assert torch.equal(x, expected)


@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_threads_measure_one_model_as_one_thread_does(kind: str) -> None:
    model = net(nn.BatchNorm1d(4))
    before = copy.deepcopy(model.state_dict())
    own = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    shared = operator(model, "cross_entropy", data(), kind=kind)
    vectors = torch.randn(8, shared.shape[0], dtype=torch.float64)
    expected = [shared @ vector for vector in vectors]
    found: dict[int, Tensor] = {}

    def measure(number: int) -> None:
        for _ in range(5):
            made = operator(model, "cross_entropy", data(), kind=kind)
            assert torch.allclose(made @ vectors[number], expected[number])
            found[number] = shared @ vectors[number]

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close([found[number] for number in range(8)], expected)
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == own
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_autocast_inside_the_model_keeps_its_precision() -> None:
    seen: list[torch.dtype] = []

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv1d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.inner(x.unsqueeze(2))
            if x.dtype != torch.float64:  # the check of the derivatives, which autocast leaves
                seen.append(y.dtype)
            return y.float().flatten(1)

    model = Cast()
    x, y = data()
    operator(model, "cross_entropy", (x.float(), y), kind="hessian")
    dtypes = {dtype for dtype in seen if isinstance(dtype, torch.dtype)}  # not of stand-ins
    assert dtypes == {torch.bfloat16}
