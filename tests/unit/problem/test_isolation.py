# ruff: noqa: NPY002 - models may draw from NumPy's global generator, so it must come back too
import os
import random
import signal
import threading

import numpy as np
import pytest
import torch
from tests.unit.curvature.networks import batch, network, randomized
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from normscope.curvature import operator, top_eigenvalue
from normscope.layers.noisy import NoisyBatchNorm1d
from normscope.problem import RandomGenerators, isolated


class StoppedError(Exception):
    pass


def busy_model():
    """Running statistics, dropout, noise with its own generator, attributes set in the forward."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.zeros(()), persistent=False)

        def forward(self, x):
            self.calls += 1
            self.last = x
            self.seen += 1
            return x + np.random.rand() + random.random()

    model = randomized(
        nn.Sequential(
            nn.Linear(3, 4),
            nn.BatchNorm1d(4),
            nn.Tanh(),
            nn.Dropout(0.3),
            Counting(),
            parametrizations.spectral_norm(nn.Linear(4, 4)),
            NoisyBatchNorm1d(4, generator=1),
            nn.Linear(4, 2),
        )
    )
    model[1].eval()  # flags need not agree
    model[0].bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].weight.grad = None
    model[2].register_forward_hook(lambda module, inputs, output: output * 1.5)
    model[4].register_full_backward_hook(lambda *_: pytest.fail("a backward hook ran"))
    model[7].weight.register_hook(lambda _: pytest.fail("a parameter's hook ran"))
    return model


def random_states():
    legacy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), legacy[1].tolist(), legacy[2]


def snapshot(model):
    """All that a measurement must leave as it was; tensors by identity and by value."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "identities": [(name, id(t), t.data_ptr(), t._version) for name, t in tensors],
        "values": [t.detach().clone() for _, t in tensors],
        "gradients": [
            None if p.grad is None else (id(p.grad), p.grad.clone()) for p in model.parameters()
        ],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "attributes": [
            (list(vars(m)), {k: id(v) for k, v in vars(m).items()}, m.training)
            for m in model.modules()
        ],
        "hooks": [
            [list(getattr(m, kind)) for kind in vars(m) if kind.endswith("hooks")]
            for m in model.modules()
        ],
        "generators": [
            g.get_state()
            for m in model.modules()
            for g in vars(m).values()
            if isinstance(g, torch.Generator)
        ],
        "random": random_states(),
        "grad mode": torch.is_grad_enabled(),
    }


def assert_same(before, after):
    for key in ("identities", "requires_grad", "attributes", "hooks", "grad mode", "random"):
        assert before[key] == after[key], key
    for key in ("values", "generators"):
        for one, other in zip(before[key], after[key], strict=True):
            assert torch.equal(one, other), key
    for one, other in zip(before["gradients"], after["gradients"], strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one[0] == other[0] and torch.equal(one[1], other[1]))


DATA = batch("torch_batch", 8)
SEVERAL = [batch("torch_batch", 8), batch("torch_batch", 5)]


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("kind", ["fisher", "ggn", "hessian"])
@pytest.mark.parametrize("data", [DATA, SEVERAL], ids=["one", "several"])
def test_measurement_leaves_no_trace(kind, mode, data):
    model = busy_model()
    before = snapshot(model)
    made = operator(model, functional.cross_entropy, data, kind=kind, mode=mode)
    made @ torch.ones(made.shape[0], dtype=torch.float64)
    top_eigenvalue(model, functional.cross_entropy, data, kind=kind, mode=mode, tol=0.05)
    assert_same(before, snapshot(model))


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("place", ["model", "loss"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_measurement_leaves_no_trace_after_an_error(error, mode, place, call):
    model = busy_model()
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1
        if calls == call:
            raise error

    def loss(output, target):
        if place == "loss":
            count()
        return functional.cross_entropy(output, target)

    if place == "model":
        model[6].register_forward_hook(count)
    before = snapshot(model)
    with pytest.raises(error):
        top_eigenvalue(model, loss, SEVERAL, kind="hessian", mode=mode)
    assert calls == call
    assert_same(before, snapshot(model))


def test_ctrl_c_leaves_no_trace():
    model = busy_model()
    before = snapshot(model)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def measure_forever():
        timer.start()
        while True:
            top_eigenvalue(model, functional.cross_entropy, SEVERAL, kind="hessian", tol=0.2)

    with pytest.raises(KeyboardInterrupt):
        measure_forever()
    assert_same(before, snapshot(model))


def test_restoring_is_repeated_if_it_is_interrupted():
    model = nn.Linear(2, 2)
    weight = model.weight

    class InterruptsOnce(dict):
        armed = True

        def clear(self):
            super().clear()
            if InterruptsOnce.armed:
                InterruptsOnce.armed = False
                raise KeyboardInterrupt

    model.__dict__["_parameters"] = InterruptsOnce(model._parameters)

    def disturb():
        with isolated(model):
            model._parameters["weight"] = torch.zeros(2, 2)
            model.training = False

    with pytest.raises(KeyboardInterrupt):
        disturb()
    assert model.weight is weight
    assert model.training


def test_user_data_is_not_overwritten():
    class InPlaceInput(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2))

    inputs, labels = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    made = operator(InPlaceInput(3, 2), functional.cross_entropy, [(inputs, labels)] * 2)
    made @ torch.ones(made.shape[0])
    assert torch.equal(inputs, torch.ones(4, 3))


def test_embedding_with_max_norm_keeps_its_weights():
    model = nn.Sequential(nn.Embedding(5, 2, max_norm=0.1), nn.Flatten(), nn.Linear(6, 2))
    before = model[0].weight.detach().clone()
    operator(model, functional.cross_entropy, batch("embedding"))
    assert torch.equal(model[0].weight, before)


def test_fixed_randomness_repeats_and_restores_every_source():
    own = torch.Generator().manual_seed(9)
    before = random_states()
    state = own.get_state()
    draws = []
    for _ in range(2):
        with RandomGenerators(own).preserved(4):
            draws.append(
                (
                    torch.rand(1).item(),
                    np.random.rand(),
                    random.random(),
                    torch.rand(1, generator=own).item(),
                )
            )
    assert draws[0] == draws[1]
    assert random_states() == before
    assert torch.equal(own.get_state(), state)


def test_checkpointed_model_is_recomputed_in_the_same_mode():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network("torch_batch")

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    data = batch("torch_batch")
    for mode in ("train", "eval"):
        for kind in ("fisher", "hessian"):
            plain, saved = network("torch_batch"), Checkpointed()
            expected, measured = (
                operator(model, functional.cross_entropy, data, kind=kind, mode=mode)
                for model in (plain, saved)
            )
            vector = torch.linspace(-1, 1, expected.shape[0], dtype=torch.float64)
            assert torch.allclose(measured @ vector, expected @ vector, rtol=1e-10)
