"""The features of normscope, each tried on an entry of the zoo and judged by a reference.

A feature's function raises `NotApplicable` where the question has no meaning for the entry, a
`NormscopeError` where normscope refuses, and an `AssertionError` where a number is wrong.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.zoo.entry import Entry, call
from tests.zoo.reference import (
    LARGEST_SEARCH,
    Reference,
    fixed_draws,
    in_double,
    map_tensors,
    subset,
    trainable,
)
from tests.zoo.state import changes, fill_gradients, snapshot
from torch import Tensor, nn

import normscope as ns
from normscope.errors import NormscopeError, NormscopeWarning
from normscope.problem import Evaluator, parameter_layout

Feature = Callable[[Entry, nn.Module, Any], None]

FEATURES: dict[str, Feature] = {}
"""The columns of the table, in order."""

SEARCH_TOLERANCE = 1e-4
DENSE_TOLERANCE = 1e-7
STEPS = 3
PREDICTED_SAMPLES = 32
PREDICTION_FACTOR = 3.0


class NotApplicable(Exception):  # noqa: N818 - an answer, not an error
    """The feature has no meaning for this model."""


def feature(name: str) -> Callable[[Feature], Feature]:
    """Register a feature under the heading of its column."""

    def register(function: Feature) -> Feature:
        FEATURES[name] = function
        return function

    return register


def outcome(entry: Entry, name: str) -> str:
    """Return "works", "n/a" or "refuses: ..." for one cell; raise on anything else.

    Args:
        entry: the row.
        name: the column.

    Returns:
        The outcome.

    Raises:
        AssertionError: if a number is wrong, or if the call changed the model's state.
    """
    model, batch = entry.build(), entry.batch()
    fill_gradients(model)
    before = snapshot(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NormscopeWarning)
            FEATURES[name](entry, model, batch)
        found = "works"
    except NotApplicable:
        found = "n/a"
    except NormscopeError as error:
        found = f"refuses: {error}"
    changed = changes(before, snapshot(model))
    assert not changed, f"{entry.name}, {name}: changed {', '.join(changed[:5])}"
    return found


@functools.lru_cache(maxsize=1)
def reference_of(entry: Entry) -> Reference:
    """Return the reference of an entry; the columns of a row share it."""
    return Reference(entry)


def assert_close(found: float, expected: float, tolerance: float) -> None:
    """Assert that two numbers agree, relative to the expected one."""
    assert math.isfinite(found), found
    assert abs(found - expected) <= tolerance * abs(expected), (found, expected)


def double(entry: Entry, model: nn.Module, batch: Any) -> tuple[nn.Module, Any]:
    """Return copies of a model and a batch in float64."""
    dtype = next(model.parameters()).dtype
    return copy.deepcopy(model).double(), in_double(batch, dtype)


@feature("loss, gradient")
def loss_and_gradient(entry: Entry, model: nn.Module, batch: Any) -> None:
    exact_model, exact_batch = double(entry, model, batch)
    reference = reference_of(entry)
    problem = ns.Problem(exact_model, entry.loss, exact_batch)
    evaluator = Evaluator(problem, parameter_layout(exact_model), entry.mode, 0)
    number, prepared = next(evaluator.batches())
    found = evaluator(prepared, number)
    parts = torch.autograd.grad(found.loss, found.leaves, materialize_grads=True)
    gradient, expected = torch.cat([part.flatten() for part in parts]), reference.gradient()
    assert_close(found.loss.item(), reference.loss.item(), entry.loss_precision)
    error = float((gradient - expected).norm() / expected.norm())
    assert error <= 100 * entry.loss_precision, error


def top(kind: str) -> Feature:
    """Return the feature of a matrix's top eigenvalue, over all parameters, in the own dtype."""

    def measure(entry: Entry, model: nn.Module, batch: Any) -> None:
        found = ns.curvature.top_eigenvalue(
            model, entry.loss, batch, kind=kind, mode=entry.mode, tol=SEARCH_TOLERANCE
        )
        reference = reference_of(entry)
        if reference.size > LARGEST_SEARCH:
            vector = found.vectors[:, 0].cpu()
            reference.check_eigenvector(kind, vector, found.value, entry.tolerance)
        else:
            assert_close(found.value, reference.top_eigenvalue(kind), entry.tolerance)

    return measure


for _kind, _heading in (("ggn", "GGN"), ("fisher", "Fisher"), ("hessian", "Hessian")):
    FEATURES[f"{_heading} top eigenvalue"] = top(_kind)


@feature("dense, float64")
def dense(entry: Entry, model: nn.Module, batch: Any) -> None:
    """GGN and Hessian of a few parameters against explicit matrices, to 1e-7."""
    exact_model, exact_batch = double(entry, model, batch)
    reference, chosen = reference_of(entry), subset(model)
    parameters = [trainable(exact_model)[number] for number in chosen]
    for kind in ("ggn", "hessian"):
        expected = reference.dense(kind, chosen)
        found = ns.curvature.dense(
            exact_model, entry.loss, exact_batch, kind=kind, mode=entry.mode, params=parameters
        )
        error = float((found - expected).norm() / expected.norm())
        assert error <= DENSE_TOLERANCE, (kind, error)


@feature("trace, spectrum")
def trace_and_spectrum(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The trace of a few parameters' GGN is exact; the spectrum is a density of all."""
    chosen = subset(model)
    parameters = [trainable(model)[number] for number in chosen]
    options: dict[str, Any] = {"kind": "ggn", "mode": entry.mode, "params": parameters}
    size = sum(parameter.numel() for parameter in parameters)
    found = ns.curvature.trace(model, entry.loss, batch, products=4 * size, **options)
    expected = float(reference_of(entry).dense("ggn", chosen).trace())
    assert_close(found.value, expected, 10 * entry.tolerance)
    density = ns.curvature.spectrum(model, entry.loss, batch, probes=2, lanczos_steps=8, **options)
    assert bool((density["density"] >= 0).all())


def training_losses(entry: Entry, model: nn.Module, batch: Any, rate: float, steps: int) -> list:
    """Return the losses of plain gradient descent on one batch, and change the model."""
    losses = []
    optimizer = torch.optim.SGD(trainable(model), lr=rate)
    with fixed_draws():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = entry.plain_loss(*entry.tensors(call(model, batch)), batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def own_dtype(model: nn.Module, batch: Any) -> Any:
    """Return the batch with floating-point tensors in the model's dtype."""
    dtype = next(model.parameters()).dtype

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tensors(convert, batch)


@feature("max_learning_rate")
def predicted_rate(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The curvature bound at the start is 2 over the top eigenvalue of the GGN."""
    advice = ns.max_learning_rate(model, entry.loss, [batch], verify=False)
    low, high = advice.interval
    assert 0 < low <= advice.limit <= high
    assert advice.recommended <= advice.limit


@feature("max_learning_rate, verified")
def verified_rate(entry: Entry, model: nn.Module, batch: Any) -> None:
    """Plain gradient descent at half the verified limit does not break."""
    advice = ns.max_learning_rate(model, entry.loss, [batch], verify=True)
    stable, unstable = advice.verified
    assert stable is None or unstable is None or stable <= unstable
    twin, data = entry.build(), own_dtype(model, batch)
    losses = training_losses(entry, twin, data, advice.recommended, 30)
    assert all(map(math.isfinite, losses)), losses
    assert min(losses[-5:]) <= 1.5 * losses[0], losses


@feature("Scope")
def scope(entry: Entry, model: nn.Module, batch: Any) -> None:
    """Training with a scope ends in the same bits as without."""
    ends = []
    for watched in (False, True):
        twin = entry.build()
        data = own_dtype(twin, batch)
        optimizer = torch.optim.SGD(trainable(twin), lr=0.01)
        probes = ns.Scope(twin, entry.loss, optimizer, every=1) if watched else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = entry.plain_loss(*entry.tensors(call(twin, data)), data)
                loss.backward()
                if probes is not None:
                    _step(probes, data)
                optimizer.step()
            ends.append(snapshot(twin))
        if probes is not None:
            assert len(probes.results["step"]) == STEPS
            probes.close()
    own = ("identity", "class")  # two models have other objects; parametrized ones other classes
    changed = [name for name in changes(*ends) if not name.startswith(own)]
    assert not changed, f"training changed: {', '.join(changed[:5])}"


def _step(probes: Any, batch: Any) -> None:
    """Show one batch to a scope: a pair as x and y, anything else as it is."""
    if isinstance(batch, tuple) and len(batch) == 2:
        probes.step(*batch)
    else:
        probes.step(batch)


def keeps_statistics(model: nn.Module) -> bool:
    """Return whether a layer of the model keeps running statistics."""
    return any("running_mean" in name for name, _ in model.named_buffers())


@feature("population_statistics")
def population_statistics(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The first layer's statistics are those of its inputs, nothing else changes."""
    if not keeps_statistics(model):
        raise NotApplicable
    twin = copy.deepcopy(model)
    before = snapshot(twin)
    written = ns.layers.population_statistics(twin, [batch])
    assert written
    changed = changes(before, snapshot(twin))
    assert all("running_" in name for name in changed), changed
    with recorded_inputs(twin, next(iter(written))) as inputs, torch.no_grad():
        for module in twin.modules():
            module.training = False
        call(twin, own_dtype(twin, batch))
    x = torch.cat(inputs).double()  # a layer may run several times
    expected = x.mean([axis for axis in range(x.dim()) if axis != 1])
    found = next(iter(written.values())).mean.double()
    assert torch.allclose(found, expected, rtol=1e-2, atol=entry.tolerance)


@contextmanager
def recorded_inputs(model: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """Collect the inputs of a module while the context is open."""
    inputs: list[Tensor] = []
    module = model.get_submodule(name)
    handle = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    yield inputs
    handle.remove()


@feature("convert")
def convert(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The converted model runs, and its norm layers are of the new kind."""
    converted = ns.layers.convert(model, entry.convert_to)
    with fixed_draws():
        data = own_dtype(model, batch)
        loss = entry.plain_loss(*entry.tensors(call(converted, data)), data)
    assert math.isfinite(loss.item())
    assert not ns.layers.plan_conversion(converted, entry.convert_to)


@feature("fold")
def fold(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The folded model computes the same in eval mode with fewer norm layers."""
    if not keeps_statistics(model):
        raise NotApplicable
    exact_model, exact_batch = double(entry, model, batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NormscopeWarning)
        folded = ns.layers.fold(exact_model)
    if norm_count(folded) == norm_count(exact_model):
        raise NormscopeError(str(caught[0].message))
    for module in exact_model.modules():
        module.training = False
    with torch.no_grad(), fixed_draws():
        expected = entry.tensors(call(exact_model, exact_batch))
        found = entry.tensors(call(folded, exact_batch))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-8)


def norm_count(model: nn.Module) -> int:
    """Return the number of layers that keep running statistics."""
    return sum("running_mean" in name for name, _ in model.named_buffers())


@feature("meanfield.predict")
def mean_field(entry: Entry, model: nn.Module, batch: Any) -> None:
    """The predicted eigenvalue is within a factor of three: the theory is of wide networks."""
    if entry.input_shape is None:
        raise NotApplicable
    data = entry.batch(samples=PREDICTED_SAMPLES)
    found = ns.meanfield.predict(model, entry.input_shape, closure="frozen", data=data[0])
    weights = [n for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1]
    measured = ns.curvature.top_eigenvalue(
        model, entry.loss, data, kind="fisher", mode="frozen", params=weights
    )
    ratio = float(found.lambda_max) / measured.value
    assert 1 / PREDICTION_FACTOR < ratio < PREDICTION_FACTOR, ratio


@feature("check_layer")
def check_layer(entry: Entry, model: nn.Module, batch: Any) -> None:
    """No statement is refuted on a batch norm layer."""
    if entry.layer is None:
        raise NotApplicable
    found = ns.theorems.check_layer(model, entry.loss, batch, layer=entry.layer, units=[0])
    assert len(found) > 0
    assert not found.refuted


@feature("compare")
def compare(entry: Entry, model: nn.Module, batch: Any) -> None:
    """Both networks get a positive limit."""
    norms = ["none", entry.convert_to]
    found = ns.compare(model, entry.loss, [batch], norms=norms, verify=False, steps=5)
    assert all(found[norm].advice.limit > 0 for norm in norms)


@feature("doctor")
def doctor(entry: Entry, model: nn.Module, batch: Any) -> None:
    """No check ends in an error, and weights that are not finite are found in their module."""
    optimizer = functools.partial(torch.optim.SGD, lr=1e-8)
    found = ns.doctor(model, entry.loss, [batch], optimizer)
    failed = [reason for reason in found.skipped.values() if "the check failed" in reason]
    assert not failed, failed
    assert not found["non_finite"]
    assert not found["learning_rate_too_high"]
    faulty = entry.build()
    weights = ((n, p) for n, p in faulty.named_parameters() if p.requires_grad and p.dim() > 1)
    name, weight = next((name, weight) for name, weight in weights if "." in name)  # of a module
    with torch.no_grad():
        weight.fill_(math.nan)
    diagnosis = ns.doctor(faulty, entry.loss, [batch], checks=["non_finite"])
    (finding,) = diagnosis["non_finite"]
    assert finding.severity == "error"
    assert finding.module
    assert name.startswith(finding.module), (name, finding.module)
