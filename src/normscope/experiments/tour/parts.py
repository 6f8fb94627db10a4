"""What the tour measures: a fully connected net on one data set, under any normalization.

Every measurement takes the net, a normalization, a seed (of weights, order of the data and noise)
and its settings, and returns labelled numbers.
"""

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
from normscope.experiments.yang2019.growth import Stack, squared_gradients
from normscope.layers.kinds import norm_layers
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.network_properties import gradient_growth
from normscope.models import build
from normscope.probes import Scope
from normscope.problem import Problem, RandomGenerators
from normscope.results import Store
from normscope.sweeps import phase_diagram
from normscope.theorems import check_layer
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
        """Return the network before training; its weights depend on the seed, not on the norm."""
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
        """Return the network with its loss and all training samples."""
        return Problem(self.model(norm, seed, depth), LOSS, self.samples.train)

    def batch(self, samples: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first training samples: one batch, or the given number."""
        x, y = self.samples.train
        size = self.batch_size if samples is None else samples
        return x[:size], y[:size]

    def settings(self, **further: Any) -> dict[str, Any]:
        """Return its settings and further ones by name, as the store keeps them."""
        return {**asdict(self), **further}


def limits(net: Net, norm: str, seed: int, progress: Callable[[object], None]) -> xr.Dataset:
    """Return the learning-rate limit: predicted, by theory, and enclosed by short runs.

    A number that the advice lacks is NaN; ``theory_says`` is what the theory's estimate is about,
    or why there is none. The short runs enclose the limit by ``stable`` and ``unstable``.
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
    names = ("limit", "curvature_bound", "recommended", "predicted", "theory")
    rates = {name: _or_nan(getattr(advice, name)) for name in names}
    stable, unstable = advice.verified or (math.nan, math.nan)
    says = advice.mean_field.reason
    return xr.Dataset({**rates, "theory_says": says, "stable": stable, "unstable": unstable})


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


def training(net: Net, norm: str, seed: int, rate: float, steps: int) -> xr.Dataset:
    """Train once at a learning rate; return losses, outcome and test accuracy.

    ``training_loss`` (training_step) is NaN after a divergence, as is ``test_accuracy``, which
    uses the population statistics of the training data.
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
            "test_accuracy": _or_nan(accuracy),
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
    """Train once under the scope; return its variables over step, distance and layer.

    The learning rate is also the unit of the distances on the ray. NaN after a divergence.

    Reference: santurkar2018, Figure 4 and Definition 2.1.
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

    ``lowest`` and ``highest`` are the ends of the Hessian's spectrum; ``lambda_max`` is of the
    Gauss-Newton matrix, NaN where a layer does not have the mode.
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
    curves = ("eigenvalue", "density", "density_error")
    return xr.Dataset(
        {
            **{name: ("point", found[name].values) for name in curves},
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
    """Return the gradients of a net of the same width with more layers.

    ``gradient_norm`` (depth_layer) by each linear layer's own parameters, and ``growth``, the
    factor by which the squared gradient grows per layer, backwards.

    Reference: yang2019.
    """
    problem = net.problem(norm, seed, layers)
    with Scope(problem.model, LOSS, probes="gradient_norms", seed=seed) as scope:
        scope.step(*net.batch())
    sizes = scope.results["gradient_norm"].isel(step=0).values
    growth = _or_nan(gradient_growth(problem, net.batch(), seed))
    return xr.Dataset(
        {"gradient_norm": ("depth_layer", sizes), "growth": growth},
        coords={"depth_layer": np.arange(1, len(sizes) + 1)},
    )


def skips(net: Net, seed: int, layers: int) -> xr.Dataset:
    """Return the same growth with BatchNorm in residual blocks, ``growth_with_skips``."""
    x, _ = net.batch()
    inputs, outputs = math.prod(x.shape[1:]), len(net.samples.classes)
    blocks = Stack("batch, skip", inputs, outputs, depth=layers, width=net.width, seed=seed)
    found = squared_gradients(blocks, x, seed)
    return xr.Dataset({"growth_with_skips": float(growth_per_layer(found))})


_NOTHING = 1e-30  # both sides of a statement on a unit that is always off, which proves nothing
# variables of the verdicts, with the keys of their dictionaries
_COLUMNS = {
    **{name: (name, str) for name in ("statement", "form", "kind")},
    "norm_layer": ("layer", str),
    "left": ("lhs", float),
    "right": ("rhs", float),
    "slack": ("slack", float),
    "refuted": ("refuted", int),
}


def statements(net: Net, seed: int, rate: float, steps: int, samples: int) -> xr.Dataset:
    """Check every statement on all BatchNorm layers after some training; a row over ``verdict``.

    The printed forms take eps for zero, and are checked on a copy of the net whose eps vanishes.

    Reference: santurkar2018, Section 4 and Appendix C.
    """
    problem, batch = net.problem("batch", seed), net.batch(samples)
    fit(problem, sgd(rate, net.momentum), steps, net.batch_size, seed)
    models = {"exact": problem.model, "printed": _without_eps(problem.model)}
    rows = [
        {**each.to_dict(), "statement": each.label, "refuted": each.refuted}
        for form, model in models.items()
        for layer in norm_layers(model)
        for each in check_layer(model, LOSS, batch, layer, form=form, seed=seed)
    ]
    rows = [row for row in rows if max(abs(row["lhs"]), abs(row["rhs"])) > _NOTHING]
    columns = {
        name: ("verdict", [kind(row[key]) for row in rows])
        for name, (key, kind) in _COLUMNS.items()
    }
    return xr.Dataset(columns, coords={"verdict": np.arange(len(rows))})


def _without_eps(model: nn.Module) -> nn.Module:
    copied = copy.deepcopy(model)
    for layer in norm_layers(copied).values():
        layer.eps = 1e-14  # type: ignore[assignment]  # torch types attributes as tensors
    return copied


_DIAGRAM = ("test_loss", "diverged", "critical_learning_rate")
_PREFIX = "diagram_"


def diagram(
    net: Net,
    gammas: Sequence[float],
    rates: Sequence[float],
    epochs: float,
    seed: int,
    store: Store,
    progress: Callable[[object], None],
) -> xr.Dataset:
    """Return the phase diagram over BatchNorm's scale and the learning rate, names prefixed.

    The loss is the squared error, which the theory is about. The trainings are separate records of
    the store. Reference: wei2018, Figure 2.
    """
    found = phase_diagram(
        "fully_connected",
        net.data,
        list(gammas),
        list(rates),
        [seed],
        epochs,
        store=store,
        progress=progress,
        width=net.width,
        depth=net.depth,
        batch_size=net.batch_size,
        momentum=net.momentum,
    )
    names = {name: f"{_PREFIX}{name}" for name in (*_DIAGRAM, "seed")}
    settings = {f"{_PREFIX}{key}": value for key, value in found.attrs.items()}
    return found[list(_DIAGRAM)].rename(names).drop_attrs(deep=False).assign_attrs(settings)


def diagram_part(results: xr.Dataset) -> xr.Dataset:
    """Return the tour's diagram in the form of `normscope.sweeps.phase_diagram`."""
    part = results[[f"{_PREFIX}{name}" for name in _DIAGRAM]].drop_vars("seed", errors="ignore")
    settings = {
        str(key).removeprefix(_PREFIX): value
        for key, value in results.attrs.items()
        if str(key).startswith(_PREFIX)
    }
    names = {f"{_PREFIX}{name}": name for name in (*_DIAGRAM, "seed")}
    return part.rename(names).assign_attrs(settings)
