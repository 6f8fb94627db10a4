"""How far the statistics of a batch are from those kept for inference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from normscope.errors import InputError, NormscopeWarning
from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.population import batch_statistics, population_statistics, spread_name
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.execution import Watch
    from normscope.probes.moment import Moment
    from normscope.problem.problem import Data

__all__ = ["StatisticsGap"]

Statistics: TypeAlias = tuple[Tensor, Tensor]  # mean and spread, per channel

COMPARISONS = ("batch-running", "batch-population", "running-population")


@PROBES.register(name="statistics_gap")
class StatisticsGap(Probe):
    r"""Distance between batch, running and population statistics of every batch norm layer.

    .. math:: \sqrt{\mathrm{mean}_c\, (\mu_c - \mu'_c)^2 / (v'_c + \epsilon)}, \qquad
        \sqrt{\mathrm{mean}_c \log^2 \frac{v_c + \epsilon}{v'_c + \epsilon}}

    over the channels c, the second of the two compared being the primed one. Measures ``mean_gap``
    and ``spread_gap``, for the comparisons batch-running and, if data is given, batch-population
    and running-population. The batch's variance is the 1/(m-1) one, which the running statistics
    average; for l_p layers v is the scale, and the mean's gap is in units of it. The running
    statistics are those before this look; NaN where a layer keeps none, or the batch has none.

    Reference: ioffe2015, Algorithm 2. Notation: mu = mean, v = spread.

    Args:
        population_data: batches whose statistics are the population's (by
            `normscope.layers.population_statistics`, one forward pass over all of it); None: no
            comparison with the population.
        every: at least so many training steps from one measurement to the next.
    """

    name = "statistics_gap"
    needs_gradient = False

    def __init__(self, population_data: Data = None, every: int | None = None) -> None:
        super().__init__(every)
        self.population_data = population_data
        self.reset(0)

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        return dict.fromkeys(("mean_gap", "spread_gap"), ("norm_layer", "comparison"))

    def reset(self, seed: int) -> None:
        """Forget the names of the layers."""
        self._names: list[str] | None = None
        self._batch: dict[str, Statistics] = {}
        self._running: dict[str, Statistics] = {}

    def watch(self, watch: Watch) -> None:
        """See the inputs of the layers that normalize over the batch."""
        self._batch, self._running = {}, {}
        for name, layer in _batch_layers(watch.model).items():
            watch.before(layer, partial(self._read, name, layer))

    def _read(self, name: str, layer: Any, inputs: Any) -> None:
        if name in self._batch or not isinstance(inputs, Tensor):
            return
        try:
            found = batch_statistics(layer, inputs.detach(), name)
        except InputError as error:  # such as one sample, which a frozen layer takes
            self.without((), str(error))
            return
        self._batch[name] = (found.mean, found.unbiased_spread)
        if layer.running_mean is not None:
            spread = getattr(layer, spread_name(layer))
            # copies: the layer is about to advance its own
            self._running[name] = (
                layer.running_mean.to(found.mean, copy=True),
                spread.to(found.mean, copy=True),
            )

    def measure(self, moment: Moment) -> Values:
        """Gaps for each layer and comparison."""
        self._order(moment)
        population = self._population(moment)
        pairs = [(self._batch, self._running), (self._batch, population)]
        pairs.append((self._running, population))
        layers = _batch_layers(moment.subject.model)
        gaps = np.full((2, len(self._layer_names), len(COMPARISONS)), np.nan)
        for row, name in enumerate(self._layer_names):
            for column, (one, other) in enumerate(pairs):
                if name in one and name in other:
                    gaps[:, row, column] = _gap(layers[name], one[name], other[name])
        return {"mean_gap": gaps[0], "spread_gap": gaps[1]}

    @property
    def _layer_names(self) -> list[str]:
        return self._names or []

    def _order(self, moment: Moment) -> None:
        """Name the layers in their order at the first measured step; those not run come last."""
        if self._names is None:
            placed = ((moment.order.place(n), n) for n in _batch_layers(moment.subject.model))
            known = [(np.inf if place is None else place, name) for place, name in placed]
            self._names = [name for _, name in sorted(known, key=lambda each: each[0])]

    def _population(self, moment: Moment) -> Mapping[str, Statistics]:
        if self.population_data is None:
            return {}
        # written into the scene's copies of the buffers, and gone with them
        with moment.passes.scene({}), warnings.catch_warnings():
            warnings.simplefilter("ignore", NormscopeWarning)  # such layers show as NaN
            found = population_statistics(moment.subject.model, self.population_data)
        return {name: (each.mean, each.spread) for name, each in found.items()}

    def coordinates(self, moment: Moment) -> dict[str, Any]:
        """Names of the layers and of the comparisons."""
        names = np.array(self._layer_names, dtype=str)
        return {"norm_layer": names, "comparison": np.array(COMPARISONS)}

    def cost(self, layers: int, points: int) -> Cost:
        """Nothing, or a pass over the population's data."""
        if self.population_data is None:
            return Cost(0)
        return Cost(1, "a forward pass over the population's data", exact=False)


def _batch_layers(model: nn.Module) -> dict[str, nn.Module]:
    modules = model.named_modules()
    return {name: module for name, module in modules if is_batch_norm(module) or is_lp_norm(module)}


def _gap(layer: Any, one: Statistics, other: Statistics) -> tuple[float, float]:
    eps = float(layer.eps)
    means = (one[0] - other[0].to(one[0])) ** 2
    spreads = one[1] + eps, other[1].to(one[1]) + eps
    scale = spreads[1] ** 2 if is_lp_norm(layer) else spreads[1]
    mean_gap = torch.sqrt((means / scale).mean())
    return mean_gap.item(), torch.sqrt(torch.log(spreads[0] / spreads[1]).square().mean()).item()
