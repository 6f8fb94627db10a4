"""Arguments of a scope, wrapped models, and the settings that its report lists."""

import time

import numpy as np
import pytest
import torch
from tests.references import scope_processes
from torch import multiprocessing, nn

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.probes import ActivationMoments, Curvature, LossVariation, Scope
from normscope.probes.observed import _describe_optimizer
from normscope.problem import whole_loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "a"}, "every must be an integer number of steps, got 'a'"),
        ({"steps": 5}, "steps must be a list of step numbers, got 5"),
        ({"budget": "x"}, "budget must be a number, got 'x'"),
        ({"probes": None}, "probes takes a preset, a name, a probe .* got None"),
        ({"probes": LossVariation}, "got the class LossVariation; call it"),
        ({"probes": [LossVariation]}, "got the class LossVariation; call it"),
        ({"distances": 0.5}, "distances must be a list of numbers, .* got 0.5"),
        ({"distances": ["a"]}, "distances must be a list of numbers"),
        ({"learning_rate": "0.1"}, "learning_rate must be a number, got '0.1'"),
        ({"store": "runs.db"}, r"store must be an open normscope\.results\.Store, .* 'runs.db'"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
    ],
)
def test_argument_of_another_type_is_refused(options, message):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ArgumentTypeError, match=message):
        Scope(model, "cross_entropy", optimizer, **{"probes": "economy", **options})


def test_unknown_loss_is_refused_at_once():
    with pytest.raises(UnknownNameError, match="did you mean 'cross_entropy'"):
        Scope(nn.Linear(4, 3), "crossentropy", probes="gradient_norms", learning_rate=0.1)


def test_probes_refuse_their_own_arguments():
    with pytest.raises(UnknownNameError, match="'hesian'; did you mean 'hessian'"):
        Curvature(kind="hesian")
    with pytest.raises(UnknownNameError, match="'evil'; did you mean 'eval'"):
        Curvature(mode="evil")
    with pytest.raises(ArgumentTypeError, match="units and bins must be integers, got 'a'"):
        ActivationMoments(units="a")
    with pytest.raises(ArgumentTypeError, match="every of curvature must be an integer"):
        Curvature(every="often")


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(InputError, match=r"'0\.weight' of the model has no shape yet; run"):
        Scope(nn.Sequential(nn.LazyLinear(3)), "cross_entropy", probes="gradient_norms")


def test_complex_parameters_are_refused():
    model = nn.Linear(4, 3, dtype=torch.cfloat)
    with pytest.raises(InputError, match="'weight' is complex; a scope takes real ones"):
        Scope(model, "cross_entropy", probes="gradient_norms")


def test_optimizer_in_the_place_of_the_loss_is_named():
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ArgumentTypeError, match=r"got SGD; it comes before the optimizer"):
        Scope(model, torch.optim.SGD(model.parameters(), 0.1))


def scope_on(loss="squared_error", optimizer=None, **options):
    model = nn.Linear(2, 1)
    made = optimizer(model) if optimizer else None
    return Scope(model, loss, made, probes="gradient_norms", **options)


def described(*what, **options):
    return scope_on(*what, **options)._settings()


def test_report_names_loss_optimizer_and_schedule(tmp_path):
    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=False)

    scope = scope_on(nn.MSELoss(), sgd, every=7)
    scope.step(torch.ones(4, 2), torch.zeros(4, 1))
    page = scope.report(tmp_path / "scope.html").read_text(encoding="utf-8")
    assert "<dt>loss</dt><dd>MSELoss</dd>" in page
    assert "<dt>optimizer</dt><dd>SGD, lr 0.2, momentum 0.9</dd>" in page
    assert "<dt>every</dt><dd>7</dd>" in page


def test_what_differs_by_parameter_group_is_told():
    def adam(model):
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
        return torch.optim.Adam(groups, lr=torch.tensor(0.25))

    found = described(optimizer=adam)
    assert found["loss"] == "squared_error"
    assert found["optimizer"] == "Adam, lr 0.25 or 0.5, betas (0.9, 0.999), eps 1e-08"


def sgd_with(rate, **settings):
    def sgd(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        optimizer.param_groups[0].update(settings)
        return optimizer

    return sgd


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (sgd_with(0.0), "SGD, lr 0.0"),
        (sgd_with(0.0, momentum=0.9), "SGD, lr 0.0, momentum 0.9"),
        (sgd_with(0.1, scales=torch.ones(3)), "SGD, lr 0.1, scales [1.0, 1.0, 1.0]"),
        (sgd_with(0.1, scales=np.ones(2)), "SGD, lr 0.1, scales [1.0, 1.0]"),
        (sgd_with(0.1, scales=torch.ones(1)), "SGD, lr 0.1, scales 1.0"),
        (sgd_with(0.1, names=["a", "b"]), "SGD, lr 0.1, names ['a', 'b']"),
        (sgd_with(0.1, scales=torch.ones(1000)), "SGD, lr 0.1, scales of 1000 values"),
    ],
)
def test_rate_of_zero_and_vectors_are_told(optimizer, told):
    assert described(optimizer=optimizer)["optimizer"] == told


def test_optimizer_without_settings_is_its_name():
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

    assert _describe_optimizer(Plain([torch.ones(1, requires_grad=True)])) == "Plain"


def mean_of_outputs(model, batch):
    return model(batch[0]).mean()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"steps": [0, 3]}, {"steps": "2 given"}),
        ({"budget": 0.5}, {"budget": 0.5}),
        ({"learning_rate": 0.1}, {"learning_rate": 0.1, "every": 50}),
    ],
)
def test_other_schedules_and_rates_are_told(options, told):
    found = described(whole_loss(mean_of_outputs), **options)
    assert found == {"loss": "mean_of_outputs (whole loss)", **told}


PROBES = ["gradient_predictiveness", "covariate_shift", "activation_moments", "statistics_gap"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Tanh())
        self.head = nn.Linear(9, 10)

    def forward(self, x):
        return self.head(self.features(x) + 1.0)


def batch(seed=0, samples=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def measured(model, parameters):
    scope = Scope(model, "cross_entropy", torch.optim.SGD(parameters, 0.1), PROBES)
    scope.step(*batch())
    return scope.results


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("way", ["whole", "in place", "part"])
def test_compiled_model_is_looked_at_uncompiled(way, fresh_compiler):
    model = Net()
    expected = measured(model, model.parameters())
    compiled = []

    def backend(graph, _):
        compiled.append(1)
        return graph

    if way == "whole":
        wrapped = torch.compile(model, backend=backend)
    elif way == "in place":
        wrapped = model
        wrapped.compile(backend=backend)
    else:
        wrapped = model
        wrapped.features = torch.compile(model.features, backend=backend)
    wrapped(batch()[0])
    assert compiled
    count = len(compiled)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith(("mean", "tracked")):
                buffer.zero_()
            else:
                buffer.fill_(1.0)
    results = measured(wrapped, wrapped.parameters())
    assert len(compiled) == count
    for name in expected.data_vars:
        np.testing.assert_allclose(
            results[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=str(name)
        )


@pytest.mark.timeout(150)
def test_only_the_first_process_measures_and_none_waits(tmp_path):
    context = multiprocessing.spawn(
        scope_processes.run, (tmp_path / "meeting", tmp_path), nprocs=2, join=False
    )
    end = time.monotonic() + 120
    try:
        while not context.join(5):
            assert time.monotonic() < end, "a process waits for another"
    finally:
        for process in context.processes:
            process.kill()
    for rank in range(2):
        plain, seen = torch.load(tmp_path / f"{rank}.pt")
        assert plain
        assert all(torch.equal(plain[name], seen[name]) for name in plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_model_compiled_by_torch_jit_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"torch\.jit cannot be replaced"):
        Scope(torch.jit.script(nn.Linear(2, 2)), "cross_entropy", learning_rate=0.1)
