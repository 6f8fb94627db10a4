"""The public calls, each on a fresh small network, for the tests of interrupts and threads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

import normscope as ns
from normscope.results import Store


class Case(NamedTuple):
    """A call, and the model that it must leave as it was.

    Args:
        model: the model.
        run: the call.
        check: names of what else is wrong after it.
        draws: whether it draws random numbers as training does, and leaves the generators there.
    """

    model: nn.Module
    run: Callable[[], Any]
    check: Callable[[], list[str]] = list
    draws: bool = False


class Remembering(nn.Module):
    """A layer with state of every kind: a buffer, lists, arrays, a generator, a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.seen: list[Tensor] = []
        self.calls = 0
        self.noise = np.random.default_rng(0)
        self.table = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.calls += 1
        self.table += 1
        self.seen.append(x.detach()[0])
        return x * (1 + 1e-3 * self.noise.standard_normal())


def network(seed: int = 0) -> nn.Sequential:
    """A small network with batch statistics, dropout, hooks, gradients and mixed flags."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)
    )
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    model[2].register_forward_hook(lambda *_: None)
    return model


def batch(samples: int = 16) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return x, torch.randint(3, (samples,), generator=generator)


def _curvature(name: str, **options: Any) -> Case:
    model = network()
    data: Any = [batch(), batch(8)]
    function = getattr(ns.curvature, name)
    return Case(model, lambda: function(model, "cross_entropy", data, **options))


def top_eigenvalue() -> Case:
    return _curvature("top_eigenvalue", kind="ggn")


def top_eigenvalue_frozen() -> Case:
    return _curvature("top_eigenvalue", kind="hessian", mode="frozen")


def operator() -> Case:
    model = nn.Sequential(network(), Remembering())
    op = ns.curvature.operator(model[0], "cross_entropy", batch(), kind="hessian")
    vector = torch.ones(op.shape[0])
    return Case(model, lambda: (op @ vector, op @ vector[:, None]))


def trace() -> Case:
    return _curvature("trace", kind="fisher")


def spectrum() -> Case:
    return _curvature("spectrum", kind="ggn", probes=2, lanczos_steps=6)


def attention() -> Case:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 3))
    options = {"kind": "ggn", "tol": 0.1}
    return Case(
        model, lambda: ns.curvature.top_eigenvalue(model, "cross_entropy", batch(8), **options)
    )


def max_learning_rate() -> Case:
    model = network()
    return Case(model, lambda: ns.max_learning_rate(model, "cross_entropy", batch(64)))


def compare() -> Case:
    model = network()
    run = lambda: ns.compare(model, "cross_entropy", batch(32), norms=["none", "layer"], steps=20)  # noqa: E731
    return Case(model, run)


def doctor() -> Case:
    model = network()
    with torch.no_grad():
        model[1].eps, model[1].bias[:6] = 5.0, -20.0
    optimizer = torch.optim.Adam(model.parameters(), lr=50.0)
    data = [batch(4), batch(4)]

    def check() -> list[str]:
        return ["state of the optimizer"] if optimizer.state else []

    return Case(model, lambda: ns.doctor(model, "cross_entropy", data, optimizer), check)


def predict() -> Case:
    model = nn.Sequential(nn.Linear(6, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 3))
    return Case(model, lambda: ns.meanfield.predict(model, (6,)))


def fold() -> Case:
    model = nn.Sequential(nn.Linear(6, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 3)).eval()
    return Case(model, lambda: ns.layers.fold(model))


def convert() -> Case:
    model = network()
    return Case(model, lambda: ns.layers.convert(model, "layer"))


def population_statistics() -> Case:
    """The statistics of all layers are written, or none."""
    model = nn.Sequential(network(), nn.BatchNorm1d(3))
    frozen = network()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
    before = [norm.running_mean.clone() for norm in norms]

    def check() -> list[str]:
        kept = {
            torch.equal(old, norm.running_mean) for old, norm in zip(before, norms, strict=True)
        }
        return [] if len(kept) == 1 else ["statistics of some layers"]

    return Case(frozen, lambda: ns.layers.population_statistics(model, [batch(), batch(8)]), check)


def evaluate() -> Case:
    model = nn.Sequential(network(), Remembering()).train()
    return Case(
        model, lambda: ns.training.evaluate(model, "cross_entropy", batch(64), batch_size=8)
    )


def fit() -> Case:
    """Training changes the weights; the flags, and all global state, are as before."""
    model = network().eval()

    def check() -> list[str]:
        flags = {module.training for module in model.modules()}
        return [] if flags == {False} else ["training flags"]

    problem = ns.Problem(model, "cross_entropy", batch(64))
    run = lambda: ns.fit(problem, ns.sgd(0.01), steps=20, batch_size=16)  # noqa: E731
    return Case(nn.Identity(), run, check, draws=True)


def fit_with_checkpoint() -> Case:
    """A checkpoint that an interrupt leaves behind can be resumed."""
    folder = Path(tempfile.mkdtemp())
    path = folder / "run.ckpt"

    problem = ns.Problem(network(), "cross_entropy", batch(64))
    options = {"batch_size": 16, "checkpoint": path, "checkpoint_every": 4}

    def run() -> None:
        ns.fit(problem, ns.sgd(0.01), steps=20, **options)

    def check() -> list[str]:
        run()
        left = [file.name for file in folder.iterdir() if file != path]
        return [f"files {left}"] if left else []

    return Case(nn.Identity(), run, check, draws=True)


def scope_step() -> Case:
    model = network()
    scope = ns.Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.1), every=1)
    x, y = batch()
    scope.step(x, y)

    def check() -> list[str]:
        scope.step(x, y)
        return [] if len(scope.results.step) else ["results"]

    return Case(model, lambda: (scope.step(x, y), scope.step(x, y)), check)


def check_layer() -> Case:
    model = network()
    return Case(model, lambda: ns.theorems.check_layer(model, "cross_entropy", batch(), layer="1"))


def theorems() -> Case:
    return Case(nn.Identity(), lambda: ns.theorems.check("theorem_4_1", cases=20))


def store() -> Case:
    """Records are whole or absent, and the store can be written on."""
    path = Path(tempfile.mkdtemp()) / "runs.sqlite"
    kept = Store(path)
    data = xr.Dataset({"loss": ("step", np.arange(50.0))})
    number = 0

    def run() -> None:
        nonlocal number
        for _ in range(5):
            number += 1
            key = kept.add("case", {"number": number}, 0)
            kept.start(key)
            kept.append(key, data)
            kept.finish(key)

    def check() -> list[str]:
        run()
        finished = [record.key for record in kept.select("case", state="finished")]
        sizes = {kept.read_raw(key).variables["loss"].values.size for key in finished[-20:]}
        return [] if sizes == {50} else [f"records of {sizes} steps"]

    return Case(nn.Identity(), run, check)


CALLS: dict[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (
        top_eigenvalue,
        top_eigenvalue_frozen,
        operator,
        trace,
        spectrum,
        attention,
        max_learning_rate,
        compare,
        doctor,
        predict,
        fold,
        convert,
        population_statistics,
        evaluate,
        fit,
        fit_with_checkpoint,
        scope_step,
        check_layer,
        theorems,
        store,
    )
}
