"""Random networks: every call agrees with a slow reference, or refuses in one line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from random import Random

import pytest
import torch
from tests.adversarial import reference
from tests.adversarial.interrupts import differences, global_state, model_state
from tests.adversarial.networks import Generator, Sample
from torch import nn

import normscope as ns
from normscope.errors import NormscopeError

TOLERANCE = 1e-7  # of the largest entry, in float64


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    scale = max(float(expected.abs().max()), 1e-12)
    error = float((found - expected).abs().max())
    assert error <= tolerance * scale, f"{error / scale:.2g} of the largest entry"


def mode_of(sample: Sample, draw: Random) -> str:
    return draw.choice(("train", "eval", "as_is"))


def is_noisy(sample: Sample, mode: str) -> bool:
    return sample.is_noisy and mode != "eval"


def dense(seed: int, sample: Sample, draw: Random) -> None:
    kind, mode = draw.choice(("fisher", "ggn", "hessian")), mode_of(sample, draw)
    found = ns.curvature.dense(sample.model, sample.loss, sample.data, kind=kind, mode=mode)
    if is_noisy(sample, mode):
        close(found, found.T)
    else:
        close(found, reference.curvature(seed, kind, mode))


def operator(seed: int, sample: Sample, draw: Random) -> None:
    kind, mode = draw.choice(("fisher", "ggn", "hessian")), mode_of(sample, draw)
    matrix = ns.curvature.operator(sample.model, sample.loss, sample.data, kind=kind, mode=mode)
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(matrix.shape[0], 2, dtype=matrix.dtype, generator=generator)
    columns = torch.stack([matrix @ block[:, 0], matrix @ block[:, 1]], dim=1)
    close(matrix @ block, columns, 1e-9)
    if not is_noisy(sample, mode):
        close(columns, reference.curvature(seed, kind, mode) @ block)


def top_eigenvalue(seed: int, sample: Sample, draw: Random) -> None:
    kind, mode = draw.choice(("fisher", "ggn", "hessian")), mode_of(sample, draw)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = ns.curvature.top_eigenvalue(
            sample.model, sample.loss, sample.data, kind=kind, mode=mode, tol=1e-4
        )
    if not found.converged:
        assert caught
        return
    if is_noisy(sample, mode):
        matrix = ns.curvature.dense(sample.model, sample.loss, sample.data, kind=kind, mode=mode)
    else:
        matrix = reference.curvature(seed, kind, mode)
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    error = abs(found.value - float(values[-1]))
    assert error <= 2e-4 * max(float(values.abs().max()), 1e-12), (found.value, values[-1])


def trace(seed: int, sample: Sample, draw: Random) -> None:
    kind, mode = draw.choice(("fisher", "ggn", "hessian")), mode_of(sample, draw)
    found = ns.curvature.trace(sample.model, sample.loss, sample.data, kind=kind, mode=mode)
    if not is_noisy(sample, mode):
        matrix = reference.curvature(seed, kind, mode)
        size = float(matrix.diagonal().abs().sum())
        error = abs(found.value - float(matrix.trace()))
        assert error <= 6 * found.standard_error + 1e-7 * size, (found.value, matrix.trace())


def fold(seed: int, sample: Sample, draw: Random) -> None:
    folded = ns.layers.fold(sample.model)
    expected = reference.twin(seed).model.eval()
    for x, _ in sample.batches:
        with torch.no_grad():
            close(folded(x), expected(x), 1e-9)


def convert(seed: int, sample: Sample, draw: Random) -> None:
    kinds = ("none", "batch", "layer", "group")
    if sample.batches[0][0].dim() == 3:
        kinds = ("none", "layer")  # a layer norm does not say where a sequence has its channels
    converted = ns.layers.convert(sample.model, draw.choice(kinds))
    with torch.no_grad(), torch.random.fork_rng():
        assert converted.train()(sample.batches[0][0]).isfinite().all()


def population_statistics(seed: int, sample: Sample, draw: Random) -> None:
    model = reference.twin(seed).model
    found = ns.layers.population_statistics(model, sample.data)
    for name, (mean, variance) in reference.population(seed).items():
        if model.get_submodule(name).track_running_stats:
            deviation = variance.sqrt()
            close(found[name].mean + deviation, mean + deviation, 1e-9)
            close(found[name].spread, variance, 1e-9)


def evaluate(seed: int, sample: Sample, draw: Random) -> None:
    found = ns.training.evaluate(sample.model, sample.loss, sample.data, batch_size=4)
    expected = reference.evaluation(seed)
    assert math.isclose(found.loss, expected, rel_tol=1e-9), (found.loss, expected)


def predict(seed: int, sample: Sample, draw: Random) -> None:
    shape = tuple(sample.batches[0][0].shape[1:])
    found = ns.meanfield.predict(sample.model, shape, closure=draw.choice(("train", "frozen")))
    if found.lambda_max is not None:  # else it says why
        assert math.isfinite(found.lambda_max)
        assert found.lambda_max >= found.lower_bound * (1 - 1e-9)


def scope(seed: int, sample: Sample, draw: Random) -> None:
    optimizer = torch.optim.SGD(sample.model.parameters(), lr=0.01)
    x, y = sample.batches[0]
    whole = "whole_loss" in sample.parts
    with ns.Scope(sample.model, sample.loss, optimizer, every=1) as observer:
        for _ in range(2):
            observer.step((x, y)) if whole else observer.step(x, y)
    if not is_noisy(sample, "as_is"):
        same = reference.twin(seed)
        expected = float(same.plain_loss(same.model, same.model(x), y))
        assert math.isclose(float(observer.results["loss"][0]), expected, rel_tol=1e-9)


def check_layer(seed: int, sample: Sample, draw: Random) -> None:
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    names = [name for name, each in sample.model.named_modules() if isinstance(each, norms)]
    if names:
        found = ns.theorems.check_layer(
            sample.model, sample.loss, sample.data, layer=draw.choice(names), dtype=None
        )
        assert not found.refuted, found


def max_learning_rate(seed: int, sample: Sample, draw: Random) -> None:
    found = ns.max_learning_rate(sample.model, sample.loss, sample.data, verify=False)
    assert found.limit > 0


def fit(seed: int, sample: Sample, draw: Random) -> None:
    """The textbook loop ends at the same weights."""
    if len(sample.batches) > 1:
        return  # in an order of its own
    trained, same = reference.twin(seed), reference.twin(seed)
    problem = ns.Problem(trained.model, trained.loss, trained.data)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        ns.fit(problem, ns.sgd(0.01), steps=2, divergence_factor=None)
    optimizer = torch.optim.SGD([p for p in same.model.parameters() if p.requires_grad], lr=0.01)
    held = [m for m in same.model.modules() if same.model.training and not m.training]
    same.model.train()
    for module in held:
        module.training = False
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for x, y in same.batches * 2:
            optimizer.zero_grad()
            same.plain_loss(same.model, same.model(x), y).backward()
            optimizer.step()
    for one, other in zip(trained.model.parameters(), same.model.parameters(), strict=True):
        close(one.detach(), other.detach(), 1e-9)


CHECKS = {
    dense: 5,
    operator: 4,
    top_eigenvalue: 5,
    trace: 3,
    fold: 4,
    convert: 2,
    population_statistics: 2,
    evaluate: 2,
    predict: 2,
    scope: 2,
    check_layer: 2,
    max_learning_rate: 1,
    fit: 2,
}
CHECKS_PER_NETWORK = 3


@pytest.mark.cases(sample=70)
def test_calls_agree_with_a_reference_or_refuse(
    case_seeds: list[int], count: Callable[..., None]
) -> None:
    (seed,) = case_seeds
    draw = Random(seed)
    refused = 0
    for check in draw.choices(list(CHECKS), list(CHECKS.values()), k=CHECKS_PER_NETWORK):
        sample = Generator(seed).sample()
        reason = _refusal(check, seed, sample, draw)
        refused += reason is not None
        count("calls", "agreed" if reason is None else f"refused by {check.__name__}")
    count("networks", "with a refusal" if refused else "without a refusal")


def _refusal(check: Callable[..., None], seed: int, sample: Sample, draw: Random) -> str | None:
    """Run a check; return the message of a refusal. Anything else that is wrong fails."""
    before, model = global_state(), model_state(sample.model)
    message = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check(seed, sample, draw)
        except NormscopeError as error:
            message = str(error)
            assert message
            assert "\n" not in message
        except Exception as error:
            raise AssertionError(f"{check.__name__} of {sample}") from error
    wrong = differences(before, global_state()) + differences(model, model_state(sample.model))
    assert not wrong, f"{check.__name__} changed {wrong} of {sample}"
    return message
