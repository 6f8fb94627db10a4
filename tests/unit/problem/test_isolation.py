# ruff: noqa: NPY002 - models may draw from NumPy's global generator, so it must come back too
import os
import random
import signal
import threading
from collections import Counter, deque
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.unit.curvature.networks import batch, network, randomized
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from normscope import max_learning_rate
from normscope.curvature import operator, top_eigenvalue, trace
from normscope.errors import ArgumentTypeError
from normscope.layers import NoisyBatchNorm1d
from normscope.problem import (
    Evaluator,
    Isolation,
    Problem,
    RandomGenerators,
    copy_tensors,
    isolated,
    parameter_layout,
)


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
        if calls >= call:
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
    # the checks of the sum and in float64 give way to the measurement itself
    assert call <= calls <= call + 2
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


class Remembering(nn.Module):
    """Cross-entropy relative to a running mean of itself, which counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.calls, self.seen = 0, []

    def forward(self, output, target):
        value = nn.functional.cross_entropy(output, target)
        self.mean.lerp_(value.detach(), 0.1)
        self.calls += 1
        self.seen.append(self.calls)
        return value / self.mean


def model_and_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return model, (torch.randn(48, 4), torch.randint(3, (48,)))


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, loss, data: top_eigenvalue(model, loss, data, kind="hessian"),
        lambda model, loss, data: top_eigenvalue(model, loss, data, kind="ggn"),
        lambda model, loss, data: trace(model, loss, data, kind="hessian"),
        lambda model, loss, data: max_learning_rate(model, loss, data, batch_size=16),
        lambda model, loss, data: max_learning_rate(model, loss, data, batch_size=16, verify=False),
    ],
    ids=["hessian", "ggn", "trace", "advice", "prediction"],
)
def test_loss_with_a_memory_is_left_as_it_was(measure):
    model, data = model_and_data()
    loss = Remembering()
    buffer = loss.mean
    measure(model, loss, data)
    assert loss.mean is buffer
    assert loss.mean.item() == 1.0
    assert (loss.calls, loss.seen) == (0, [])


def test_every_run_begins_with_the_same_loss():
    model, data = model_and_data()
    first = max_learning_rate(model, Remembering(), data, batch_size=16)
    used = Remembering()
    max_learning_rate(model, used, data, batch_size=16)
    again = max_learning_rate(model, used, data, batch_size=16)
    assert again.verification.all_runs == first.verification.all_runs


class Growing(nn.Module):
    """Changes everything that a forward pass can change."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.history, self.cache = [], {"last": torch.zeros(2)}
        self.array, self.raw = np.zeros(3), bytearray(b"abc")
        self.sources = [torch.Generator().manual_seed(1), random.Random(1)]
        self.numpy_source = np.random.default_rng(1)

    def forward(self, x):
        self.count += 1
        self.history.append(len(self.history))
        self.cache["last"].add_(1)
        self.cache["new"] = self
        self.array += 1
        self.raw[0] = 0
        self.weight.data.mul_(2)
        self.register_forward_hook(lambda *_: None)
        self.register_full_backward_hook(lambda *_: None)
        self.added = nn.Linear(1, 1)
        draws = torch.rand(1, generator=self.sources[0]).item(), self.sources[1].random()
        self.drawn = (*draws, self.numpy_source.random())
        return x * self.weight


@pytest.mark.parametrize("error", [None, StoppedError, KeyboardInterrupt])
def test_isolated_restores_everything_a_forward_pass_can_change(error):
    model = Growing()
    before, sources = snapshot(model), list(model.sources)
    draws = model.sources[0].get_state(), model.sources[1].getstate()
    numpy_state = model.numpy_source.bit_generator.state
    tensors = copy_tensors(model)
    tensors["weight"].requires_grad_()
    expected = pytest.raises(error) if error else nullcontext()
    with expected, isolated(model, tensors=tensors):
        for _ in range(3):
            model(torch.ones(2, requires_grad=True)).sum().backward()
        assert model.count == 3
        torch.rand(1), np.random.rand(), random.random()
        if error:
            raise error
    assert_same(before, snapshot(model))
    assert (model.history, list(model.cache), bytes(model.raw)) == ([], ["last"], b"abc")
    assert model.cache["last"].tolist() == [0, 0]
    assert not model.array.any()
    assert list(model.children()) == []
    assert model.sources == sources
    assert torch.equal(model.sources[0].get_state(), draws[0])
    assert model.sources[1].getstate() == draws[1]
    assert model.numpy_source.bit_generator.state == numpy_state


def test_backward_pass_at_the_own_parameters_leaves_their_gradients():
    model = nn.Linear(2, 1)
    model.weight.grad = torch.ones(1, 2)
    before = snapshot(model)
    with isolated(model):
        model(torch.ones(3, 2)).sum().backward()
        assert model.bias.grad is not None
    assert_same(before, snapshot(model))


def test_isolated_seeds_generators_of_the_model_and_of_other_modules():
    model, other = Growing(), Growing()

    def draw(seed):
        with isolated(model, other, seed=seed):
            own = torch.rand(1, generator=model.sources[0]).item()
            return torch.rand(1).item(), own, torch.rand(1, generator=other.sources[0]).item()

    assert draw(3) == draw(3) != draw(4)
    assert len(set(draw(3))) == 1  # all from the same seed


def test_isolation_is_entered_many_times_from_the_same_state():
    model = Growing()
    isolation = Isolation(model)
    before, outputs = snapshot(model), []
    with isolation.random.preserved():
        for factor in (1.0, 2.0, 1.0):
            tensors = {"weight": torch.full((2,), factor), "count": torch.zeros(())}
            with isolation.entered(tensors, seed=5, restore_random=False):
                outputs.append((model(torch.ones(2)).tolist(), model.drawn[0]))
                assert model.count == 1
    assert_same(before, snapshot(model))
    assert outputs[0] == outputs[2]
    assert [output[0] for output, _ in outputs] == [2.0, 4.0, 2.0]
    assert len({drawn for _, drawn in outputs}) == 1


def test_random_generators_of_a_loader_and_its_samplers_are_preserved():
    owners = [torch.Generator().manual_seed(number) for number in range(3)]
    sampler = RandomSampler(range(6), generator=owners[0])
    batch_sampler = BatchSampler(sampler, 2, drop_last=False)
    loaders = [
        DataLoader(range(6), batch_sampler=batch_sampler, generator=owners[1]),
        DataLoader(range(6), shuffle=True, generator=owners[2]),
    ]
    states = [generator.get_state() for generator in owners]
    for loader in loaders:
        orders = []
        for _ in range(2):
            with RandomGenerators(loader).preserved(7):
                orders.append([batch.tolist() for batch in loader])
        assert orders[0] == orders[1]
    for generator, state in zip(owners, states, strict=True):
        assert torch.equal(generator.get_state(), state)


def test_tied_parameters_stay_tied_at_other_values():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    with isolated(model, tensors={"0.weight": 2 * torch.eye(2)}):
        assert model[0].weight is model[1].weight
        assert model(torch.ones(1, 2)).tolist() == [[4.0, 4.0]]
    assert isinstance(model[1].weight, nn.Parameter)


def test_evaluator_reset_starts_from_fresh_buffers_at_other_leaves():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    data = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    evaluator = Evaluator(
        Problem(model, "cross_entropy", data), parameter_layout(model), "train", 0
    )
    leaves = evaluator.leaves()
    zeros = tuple(torch.zeros_like(leaf) for leaf in leaves)
    with evaluator.isolated(leaves):
        first = model(data[0])
        assert model[0].num_batches_tracked == 1
        evaluator.reset(zeros)
        assert not model(data[0]).any()
        evaluator.reset(leaves)
        assert torch.equal(model(data[0]), first)
        assert model[0].num_batches_tracked == 1
    assert model[0].num_batches_tracked == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_model_compiled_by_torch_jit_is_refused():
    model = torch.jit.trace(nn.Linear(2, 3), torch.ones(4, 2))
    with pytest.raises(ArgumentTypeError, match=r"compiled by torch\.jit cannot be replaced"):
        Isolation(nn.Sequential(model))


class Meter:
    """Counts, in an attribute of its own."""

    count = 0


class Hiding(nn.Module):
    """Holds modules where torch does not find them, and objects that count the passes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.hidden = [nn.Sequential(nn.BatchNorm1d(3))]
        self.hidden[0].deeper = {"norm": nn.BatchNorm1d(3)}
        self.meter, self.counts, self.recent = Meter(), Counter(), Recent([1], maxlen=2)

    def forward(self, x):
        self.meter.count += 1
        self.meter.new = x
        self.counts["passes"] += 1
        self.recent.append(2)
        x = self.hidden[0](self.layer(x))
        return self.hidden[0].deeper["norm"](x)


class Recent(deque):
    """A subclass of a container."""


def hidden_state(model):
    norms = model.hidden[0][0], model.hidden[0].deeper["norm"]
    buffers = [buffer.clone() for norm in norms for buffer in norm.buffers()]
    return buffers, dict(vars(model.meter)), Counter(model.counts), list(model.recent)


@pytest.mark.parametrize("trainable", [False, True])
def test_isolated_restores_objects_and_modules_that_torch_does_not_find(trainable):
    model, x = Hiding(), torch.randn(4, 3)
    model(x)
    held = [*vars(model).values()], model.hidden[0], model.meter.new
    before = hidden_state(model)
    with isolated(model, trainable=trainable):
        model(x + 1)
        model(x + 2)
    after = hidden_state(model)
    assert all(map(torch.equal, before[0], after[0]))
    assert before[1:] == after[1:]
    assert all(one is other for one, other in zip(held[0], vars(model).values(), strict=True))
    assert model.hidden[0] is held[1]
    assert model.meter.new is held[2]
    assert model.recent.maxlen == 2
