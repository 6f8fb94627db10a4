"""Trainings that a stability gauge follows, and the rule that judges where they settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.data import load
from normscope.errors import InputError
from normscope.models import build
from normscope.probes import Scope, Stability
from normscope.problem import squared_error
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store

NETWORKS = {
    "fc-tanh": ("fully_connected", "none"),
    "cnn": ("conv_net", "none"),
    "cnn-bn": ("conv_net", "batch"),
}
"""The networks by name: a registered model and its normalization."""
TOLERANCE = 0.1
"""Relative distance from the threshold within which a sharpness has settled there."""


@dataclass(frozen=True)
class Setting:
    """One training.

    Args:
        network: a name of `NETWORKS`.
        learning_rate: of the optimizer.
        steps: number of updates.
        every: steps from one measurement to the next.
        data: a registered data set.
        samples: number of training samples.
        width: units of a hidden layer of the fully connected network.
        channels: of a convolution.
        batch_size: samples of a step; 0: all, without shuffling.
        momentum: of SGD.
        optimizer: "sgd" or "adam".
        batches: number of batches whose mean is the batch sharpness; 0: it is not measured.
    """

    network: str
    learning_rate: float
    steps: int
    every: int
    data: str
    samples: int
    width: int
    channels: int
    batch_size: int = 0
    momentum: float = 0.0
    optimizer: str = "sgd"
    batches: int = 0

    @property
    def label(self) -> str:
        """The name of this training in its figure."""
        parts = [self.network]
        parts += [f"batch {self.batch_size}"] if self.batch_size else []
        parts += [f"momentum {self.momentum:g}"] if self.batch_size else []
        return ", ".join([*parts, f"rate {self.learning_rate:g}"])


def settings_of(
    networks: Sequence[str], rates: Sequence[float], steps: Sequence[int], **shared: Any
) -> list[Setting]:
    """Return one setting for each network with its rate and steps.

    Raises:
        InputError: if the lists differ in length, or a network is unknown.
    """
    if not len(networks) == len(rates) == len(steps):
        raise InputError(
            "networks, rates and steps must have one entry for each training, got "
            f"{len(networks)}, {len(rates)} and {len(steps)}."
        )
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown:
        raise InputError(f"networks are among {', '.join(NETWORKS)}; got {unknown[0]!r}.")
    rows = zip(networks, rates, steps, strict=True)
    return [Setting(name, float(rate), count, **shared) for name, rate, count in rows]


def run_all(
    settings: Sequence[Setting], seed: int, store: Store, progress: ProgressCallback
) -> xr.Dataset:
    """Return what the stability probe measured in each training, over ``run`` and ``step``.

    Args:
        settings: one for each training.
        seed: of initial weights and data order.
        store: keeps each training.
        progress: receives an event before each.

    Returns:
        The scope's variables; NaN where a training has no value.
    """
    found = []
    for setting in settings:
        progress(Progress("training", setting.label))
        compute = partial(train, setting, seed)
        found.append(store.compute("cohen2021 training", asdict(setting), seed, compute))
    labels = xr.Variable("run", [setting.label for setting in settings])
    joined = xr.concat(
        found, labels, data_vars="all", coords="minimal", compat="override", join="outer"
    )
    networks = xr.Variable("run", [setting.network for setting in settings])
    return joined.drop_vars("seed", errors="ignore").assign(network=networks)


def train(setting: Setting, seed: int) -> xr.Dataset:
    """Train a network with a stability probe attached; return the results of its scope.

    A training whose loss is not finite ends there.
    """
    model, (x, y) = _network(setting, seed), _data(setting)
    optimizer = _optimizer(setting, model)
    order = torch.Generator().manual_seed(seed)
    probe = Stability(
        sharpness=setting.optimizer == "sgd" and not setting.batches,
        preconditioned_sharpness=setting.optimizer == "adam",
        batch_sharpness=bool(setting.batches),
        batches=_fixed_batches(setting, x, y, seed) if setting.batches else None,
    )
    with Scope(model, "squared_error", optimizer, [probe], every=setting.every, seed=seed) as scope:
        for _ in range(setting.steps + 1):
            chosen = _chosen(setting, len(x), order)
            inputs, targets = (x, y) if chosen is None else (x[chosen], y[chosen])
            optimizer.zero_grad()
            loss = squared_error(model(inputs), targets)
            if not bool(loss.isfinite()):
                break
            loss.backward()  # type: ignore[no-untyped-call]
            scope.step(inputs, targets)
            optimizer.step()
    return scope.results


def _network(setting: Setting, seed: int) -> nn.Module:
    model, norm = NETWORKS[setting.network]
    shape = tuple(load(setting.data).train[0].shape[1:])
    options: dict[str, Any] = {"depth": 3, "width": setting.width}
    if model == "conv_net":
        options = {"channels": (setting.channels, setting.channels), "padding": 1}
    # the variance of torch's default initial weights
    options |= {"input_shape": shape, "sigma_w2": 1 / 3, "sigma_b2": 0.0}
    return build(model, norm, seed, activation="tanh", **options)


def _data(setting: Setting) -> tuple[Tensor, Tensor]:
    x, y = load(setting.data).train
    if len(x) < setting.samples:
        raise InputError(f"{setting.data} has {len(x)} samples, not {setting.samples}.")
    return torch.as_tensor(x[: setting.samples]), torch.as_tensor(y[: setting.samples])


def _optimizer(setting: Setting, model: nn.Module) -> Optimizer:
    if setting.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), setting.learning_rate)
    return torch.optim.SGD(model.parameters(), setting.learning_rate, setting.momentum)


def _chosen(setting: Setting, samples: int, order: torch.Generator) -> Tensor | None:
    """Return the samples of the next step; None for all of them."""
    if not setting.batch_size:
        return None
    return torch.randint(samples, (setting.batch_size,), generator=order)


def _fixed_batches(
    setting: Setting, x: Tensor, y: Tensor, seed: int
) -> list[tuple[Tensor, Tensor]]:
    order = torch.Generator().manual_seed(seed + 1)
    size = (setting.batches, setting.batch_size)
    return [(x[chosen], y[chosen]) for chosen in torch.randint(len(x), size, generator=order)]


@dataclass(frozen=True)
class Settled:
    """The level at which a sharpness settled, in multiples of its threshold.

    Args:
        label: of the training.
        ratio: median over the last third of the measurements; NaN if there is none.
        largest: the largest ratio after the first third, whose transients do not count.
    """

    label: str
    ratio: float
    largest: float

    @property
    def holds(self) -> bool | None:
        """Whether it settled at the threshold; None if the training never came near it."""
        if not self.largest >= 1 - TOLERANCE:
            return None
        return bool(abs(self.ratio - 1) <= TOLERANCE)


def settled(results: xr.Dataset, run: str, variable: str, threshold: str) -> Settled:
    """Return where a sharpness settled in one training.

    Args:
        results: of `run_all`.
        run: the label of the training.
        variable: the sharpness.
        threshold: what it is compared with.
    """
    one = results.sel(run=run)
    ratios = (one[variable] / one[threshold]).dropna("step").values
    if not ratios.size:
        return Settled(run, float("nan"), float("nan"))
    third = max(1, round(ratios.size / 3))
    return Settled(run, float(np.median(ratios[-third:])), float(ratios[third:].max(initial=0.0)))


RULE = (
    "median of the last third of the measurements of one training within 10 % of the threshold; "
    "undecided if it was below 0.9 times it at all measurements after the first third"
)
"""The decision rule of `settled_claims` in words."""


def settled_claims(
    results: xr.Dataset,
    source: str,
    statement: str,
    judged_by: Callable[[str], tuple[str, str, str, str]],
) -> list[Claim]:
    """Return for each training the claim that it settled at its threshold.

    Args:
        results: of `run_all`.
        source: of the statement.
        statement: what the paper says.
        judged_by: from a training to the variables of sharpness and threshold, the threshold in
            words, and the statement as it is judged.
    """
    claims = []
    for run in map(str, results["run"].values):
        variable, threshold, edge, text = judged_by(run)
        found = settled(results, run, variable, threshold)
        largest = f"largest after the first third {found.largest:.3g}"
        claims.append(
            Claim(
                text,
                source,
                f"{found.ratio:.3g} times {edge}; {largest}",
                found.holds,
                statement=statement,
                rule=RULE,
                resolve="more steps" if found.holds is None else "",
                numbers={"sharpness / threshold": [found.ratio], "largest": [found.largest]},
            )
        )
    return claims
