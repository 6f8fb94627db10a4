"""What the tour measures: a fully connected net on one data set, under any normalization."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from normscope.curvature import spectrum, top_eigenvalue
from normscope.data import Dataset, load
from normscope.errors import NormscopeError
from normscope.experiments.yang2019.explosion import growth_per_layer
from normscope.experiments.yang2019.growth import Stack, batch_growth, squared_gradients
from normscope.layers.kinds import norm_layers
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.network_properties import gradient_growth
from normscope.models import build
from normscope.probes import Scope
from normscope.problem import Problem, RandomGenerators
from normscope.results import Store
from normscope.sweeps import phase_diagram
from normscope.theorems import check_layer
from normscope.theorems.verdict import Verdict
from normscope.training import Outcome, evaluate, fit, sgd, train

LOSS = "cross_entropy"


_loaded = functools.lru_cache(maxsize=2)(load)


@dataclass(frozen=True)
class Net:
    """A fully connected net, its data, and how it is trained.

    Args:
        data: a registered data set.
        width: units of a hidden layer.
        depth: number of linear layers.
        batch_size: samples per step.
        momentum: of SGD.
    """

    data: str
    width: int
    depth: int
    batch_size: int
    momentum: float

    @property
    def samples(self) -> Dataset:
        """The data set, loaded once."""
        return _loaded(self.data)

    def model(self, norm: str, seed: int, depth: int | None = None) -> nn.Module:
        """Return the network before training; its weights depend on the seed, not on the norm.

        Args:
            norm: its normalization.
            seed: of its weights.
            depth: other than its own.

        Returns:
            The module.
        """
        return build(
            "fully_connected",
            norm=norm,
            seed=seed,
            input_shape=tuple(self.samples.train.x.shape[1:]),
            outputs=len(self.samples.classes),
            depth=self.depth if depth is None else depth,
            width=self.width,
        )

    def problem(self, norm: str, seed: int, depth: int | None = None) -> Problem:
        """Return the network with its loss and all training samples; arguments as in `model`."""
        return Problem(self.model(norm, seed, depth), LOSS, self.samples.train)

    def batch(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first training samples: one batch, or the given number."""
        x, y = self.samples.train
        size = self.batch_size if samples is None else samples
        return x[:size], y[:size]

    def settings(self, **further: Any) -> dict[str, Any]:
        """Return its settings and further ones by name, as the store keeps them."""
        return {**asdict(self), **further}


_RATES = ("limit", "curvature_bound", "recommended", "predicted")


def limits(net: Net, norm: str, seed: int, progress: Callable[[object], None]) -> xr.Dataset:
    """Return the learning-rate limit of one net: predicted, by theory, and by short runs.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights and order of the data.
        progress: receives the events of the short runs.

    Returns:
        ``limit``, ``curvature_bound``, ``recommended``, ``predicted``, ``theory`` (NaN where
        the theory does not cover the net: ``theory_says`` has the reason), ``stable`` and
        ``unstable``, the rates between which the short runs enclosed the limit.
    """
    advice = max_learning_rate(
        net.model(norm, seed),
        LOSS,
        net.samples.train,
        net.momentum,
        batch_size=net.batch_size,
        seed=seed,
        effort="thorough",
        objective="half_limit",
        progress=progress,
    )
    stable, unstable = advice.verified or (math.nan, math.nan)
    return xr.Dataset(
        {
            **{name: _or_nan(getattr(advice, name)) for name in _RATES},
            "theory": _or_nan(advice.theory),
            "theory_says": advice.mean_field.reason,
            "stable": stable,
            "unstable": unstable,
        }
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def training(net: Net, norm: str, seed: int, rate: float, steps: int) -> xr.Dataset:
    """Train once at a learning rate; return the losses and the final accuracy.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, order of the data and noise.
        rate: of SGD.
        steps: updates.

    Returns:
        ``training_loss`` (training_step), NaN after a divergence; ``test_accuracy`` with
        the population statistics of the training data; ``outcome``.
    """
    problem, data = net.problem(norm, seed), net.samples
    accuracy = None
    with RandomGenerators().preserved(seed):  # of the noise behind BatchNorm
        run = fit(problem, sgd(rate, net.momentum), steps, net.batch_size, seed)
        if run.outcome is not Outcome.DIVERGED:
            accuracy = evaluate(
                problem.model, LOSS, data.test, statistics="population", train_data=data.train
            ).accuracy
    losses = xr.DataArray(
        run.losses, dims="training_step", coords={"training_step": range(len(run.losses))}
    )
    return xr.Dataset(
        {
            "training_loss": losses.reindex(training_step=range(steps)),
            "test_accuracy": math.nan if accuracy is None else accuracy,
            "outcome": run.outcome.name.lower(),
        }
    )


PROBES = ("loss_variation", "gradient_predictiveness", "effective_smoothness", "covariate_shift")
_KEPT = (
    *("loss", "ray_loss", "loss_low", "loss_high"),
    *("gradient_distance", "gradient_distance_low", "gradient_distance_high"),
    *("effective_smoothness", "shift_distance", "shift_cosine"),
)


def landscape(net: Net, norm: str, seed: int, rate: float, steps: int, every: int) -> xr.Dataset:
    """Train once under the scope.

    Reference: santurkar2018, Figure 4 and Definition 2.1.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, order of the data and noise.
        rate: of SGD, and the unit of the distances on the ray.
        steps: updates.
        every: steps from one measurement to the next.

    Returns:
        The probes' variables over step, distance and layer; NaN after a divergence.
    """
    problem = net.problem(norm, seed)
    optimizer = sgd(rate, net.momentum)(problem.model.parameters())
    scope = Scope(problem.model, LOSS, optimizer, probes=PROBES, every=every, seed=seed)
    with RandomGenerators().preserved(seed), scope:
        for step in train(problem, optimizer, steps, net.batch_size, seed):
            scope.step(*step.batch)
    found = scope.results[list(_KEPT)].drop_vars("seed", errors="ignore")
    return found.reindex(step=range(0, steps, every)).drop_attrs(deep=False)


MODES = ("train", "frozen", "eval")
THRESHOLD = 1e-3  # of the linear part of the axis, the same for every normalization


def curvature(
    net: Net, norm: str, seed: int, samples: int, probes: int, products: int
) -> xr.Dataset:
    """Return the Hessian's spectral density in train mode, and lambda_max in each mode.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights, noise and random directions.
        samples: of the batch.
        probes: random directions of the spectrum.
        products: with the Hessian, for each of them.

    Returns:
        ``eigenvalue``, ``density`` and ``density_error`` (point); ``lowest`` and ``highest``, the
        ends of the spectrum; ``parameters``; ``lambda_max`` (mode) of the Gauss-Newton matrix, not
        a number where a layer does not have the mode.
    """
    model, batch = net.model(norm, seed), net.batch(samples)
    found = spectrum(
        model,
        LOSS,
        batch,
        kind="hessian",
        probes=probes,
        lanczos_steps=products,
        seed=seed,
        linear_threshold=THRESHOLD,
    )
    curves = {name: ("point", found[name].values) for name in ("density", "density_error")}
    return xr.Dataset(
        {
            "eigenvalue": ("point", found["eigenvalue"].values),
            **curves,
            "lowest": float(found["nodes"].min()),
            "highest": float(found["nodes"].max()),
            "parameters": found.attrs["parameters"],
            "lambda_max": ("mode", [_largest(net, norm, seed, batch, mode) for mode in MODES]),
        },
        coords={"point": np.arange(found.sizes["eigenvalue"]), "mode": list(MODES)},
    )


def _largest(net: Net, norm: str, seed: int, batch: tuple[Tensor, Tensor], mode: str) -> float:
    try:
        found = top_eigenvalue(
            net.model(norm, seed), LOSS, batch, "ggn", mode, tol=0.01, seed=seed, vectors=False
        )
    except NormscopeError:  # a mode that a layer does not have
        return math.nan
    return found.value


def depth(net: Net, norm: str, seed: int, layers: int) -> xr.Dataset:
    """Return gradients of a net of the same width with more layers.

    Reference: yang2019.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights and noise.
        layers: linear layers.

    Returns:
        ``gradient_norm`` (depth_layer) by each linear layer's own parameters, and ``growth``, the
        factor by which the squared gradient grows per layer, backwards.
    """
    problem, batch = net.problem(norm, seed, layers), net.batch()
    with Scope(problem.model, LOSS, probes="gradient_norms", seed=seed) as scope:
        scope.step(*batch)
    sizes = scope.results["gradient_norm"].isel(step=0).values
    growth = gradient_growth(problem, batch, seed)
    return xr.Dataset(
        {
            "gradient_norm": ("depth_layer", sizes),
            "growth": math.nan if growth is None else growth,
        },
        coords={"depth_layer": np.arange(1, len(sizes) + 1)},
    )


def skips(net: Net, seed: int, layers: int) -> xr.Dataset:
    """Return the same growth with BatchNorm in residual blocks.

    Args:
        net: the network.
        seed: of weights and of the random output.
        layers: blocks.

    Returns:
        ``growth_with_skips``.
    """
    x, _ = net.batch()
    inputs = math.prod(x.shape[1:])
    outputs = len(net.samples.classes)
    blocks = Stack("batch, skip", inputs, outputs, depth=layers, width=net.width, seed=seed)
    found = squared_gradients(blocks, x, seed)
    return xr.Dataset({"growth_with_skips": float(growth_per_layer(found))})


def expected_growth(net: Net) -> float:
    """Return the growth that theory expects of a wide net with BatchNorm at this batch size."""
    return batch_growth("relu", net.batch_size)


_OWN = ("test_loss", "diverged", "critical_learning_rate")
_PREFIX = "diagram_"


def diagram(
    net: Net,
    gammas: Sequence[float],
    rates: Sequence[float],
    epochs: float,
    seeds: Sequence[int],
    store: Store,
    progress: Callable[[object], None],
) -> xr.Dataset:
    """Return the phase diagram over the scale of BatchNorm and the learning rate.

    The loss is the squared error, which the theory is about. Reference: wei2018, Figure 2.

    Args:
        net: the network.
        gammas: initial scales of BatchNorm.
        rates: learning rates.
        epochs: of each training.
        seeds: of weights and order of the data.
        store: keeps the trainings.
        progress: receives an event as trainings end.

    Returns:
        ``diagram_test_loss`` and ``diagram_diverged`` (gamma, learning_rate, diagram_seed),
        ``diagram_critical_learning_rate`` (closure, gamma).
    """
    found = phase_diagram(
        "fully_connected",
        net.data,
        list(gammas),
        list(rates),
        list(seeds),
        epochs,
        store=store,
        progress=progress,
        width=net.width,
        depth=net.depth,
        batch_size=net.batch_size,
        momentum=net.momentum,
    )
    names = {name: f"{_PREFIX}{name}" for name in (*_OWN, "seed")}
    settings = {f"{_PREFIX}{key}": value for key, value in found.attrs.items()}
    return found[list(_OWN)].rename(names).drop_attrs(deep=False).assign_attrs(settings)


def diagram_part(results: xr.Dataset) -> xr.Dataset:
    """Return the tour's diagram in the form of `normscope.sweeps.phase_diagram`."""
    part = results[[f"{_PREFIX}{name}" for name in _OWN]]
    names = {f"{_PREFIX}{name}": name for name in (*_OWN, "seed")}
    settings = {
        str(key).removeprefix(_PREFIX): value
        for key, value in results.attrs.items()
        if str(key).startswith(_PREFIX)
    }
    return part.drop_vars("seed", errors="ignore").rename(names).assign_attrs(settings)


_VANISHING = 1e-14  # an eps too small to matter
_NOTHING = 1e-30


def statements(net: Net, seed: int, rate: float, steps: int, samples: int) -> xr.Dataset:
    """Check every statement about a layer on all BatchNorm layers of the net, after some training.

    The printed forms take eps for zero, and are checked on a copy of the net whose eps vanishes.

    Reference: santurkar2018, Section 4 and Appendix C.

    Args:
        net: the network.
        seed: of weights and order of the data.
        rate: of SGD.
        steps: updates before the check.
        samples: of the batch that it is checked on.

    Returns:
        Over ``verdict``: the ``statement``, its ``form`` and ``kind``, the ``norm_layer``, both
        sides (``left``, ``right``), ``slack``, and whether it is ``refuted``.
    """
    problem = net.problem("batch", seed)
    fit(problem, sgd(rate, net.momentum), steps, net.batch_size, seed)
    batch = net.batch(samples)
    models = {"exact": problem.model, "printed": _without_eps(problem.model)}
    found = [
        verdict
        for form, model in models.items()
        for layer in norm_layers(model)
        for verdict in check_layer(model, LOSS, batch, layer, form=form, seed=seed)
    ]
    return _table([verdict for verdict in found if _is_informative(verdict)])


def _is_informative(verdict: Verdict) -> bool:
    """Return whether a side is not zero; a unit that is always off proves nothing."""
    row = verdict.to_dict()
    return bool(max(abs(row["lhs"]), abs(row["rhs"])) > _NOTHING)


def _without_eps(model: nn.Module) -> nn.Module:
    """Return a copy with a vanishing eps, as the printed forms assume."""
    copied = copy.deepcopy(model)
    for layer in norm_layers(copied).values():
        layer.eps = _VANISHING  # type: ignore[assignment]  # torch types attributes as tensors
    return copied


# variables of the verdicts, with the keys of their dictionaries
_COLUMNS = {
    **{name: (name, str) for name in ("statement", "form", "kind")},
    "norm_layer": ("layer", str),
    "left": ("lhs", float),
    "right": ("rhs", float),
    "slack": ("slack", float),
    "refuted": ("refuted", int),
}


def _table(verdicts: list[Verdict]) -> xr.Dataset:
    rows = [
        {**each.to_dict(), "statement": each.label, "refuted": each.refuted} for each in verdicts
    ]
    columns = {
        name: ("verdict", [kind(row[key]) for row in rows])
        for name, (key, kind) in _COLUMNS.items()
    }
    return xr.Dataset(columns, coords={"verdict": np.arange(len(rows))})
