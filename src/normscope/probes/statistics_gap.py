"""The gap between the statistics of a batch and those used at inference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.layers.kinds import batch_layers, is_lp_norm
from normscope.layers.population import batch_statistics, population_statistics, spread_name
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values
from normscope.warn import silenced

if TYPE_CHECKING:
    from normscope.probes.context import StepContext
    from normscope.probes.execution import ForwardHooks
    from normscope.problem.problem import Data

Statistics: TypeAlias = tuple[Tensor, Tensor]  # mean and spread, per channel

COMPARISONS = ("batch-running", "batch-population", "running-population")


@PROBES.register(name="statistics_gap")
class StatisticsGap(Probe):
    r"""Distance between batch, running and population statistics of every batch norm layer.

    .. math:: \sqrt{\mathrm{mean}_c\, (\mu_c - \mu'_c)^2 / (v'_c + \epsilon)}, \qquad
        \sqrt{\mathrm{mean}_c \log^2 \frac{v_c + \epsilon}{v'_c + \epsilon}}

    over the channels c, where the primed statistics are the second of the two compared. Measures
    ``mean_gap`` and ``spread_gap`` for the comparisons batch-running and, if data is given,
    batch-population and running-population. The batch's variance is the 1/(m-1) one, which the
    running statistics average; for l_p layers v is the scale, and the gap of the mean is in units
    of it. The running statistics are those before this step; NaN where a layer keeps none, or the
    batch has none.

    Reference: ioffe2015, Algorithm 2. Notation: mu = mean, v = spread.

    Args:
        population_data: batches whose statistics are the population's (by
            `normscope.layers.population_statistics`, one forward pass over all of it); None: no
            comparison with the population.
        every: minimum number of training steps between two measurements.
    """

    needs_gradient = False

    def __init__(self, population_data: Data = None, every: int | None = None) -> None:
        super().__init__(every)
        self.population_data = population_data
        self.reset(0)

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return dict.fromkeys(("mean_gap", "spread_gap"), ("norm_layer", "comparison"))

    def reset(self, seed: int) -> None:
        """Clear the names of the layers."""
        self._names: list[str] | None = None
        self._batch: dict[str, Statistics] = {}
        self._running: dict[str, Statistics] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the order of the layers at the first measured step."""
        return {**super().state_dict(), "names": self._names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the order of the layers."""
        super().load_state_dict(state)
        self._names = state["names"]

    def add_hooks(self, hooks: ForwardHooks) -> None:
        """Read the inputs of the layers that normalize over the batch."""
        self._batch, self._running = {}, {}
        for name, layer in batch_layers(hooks.model).items():
            hooks.before_call(layer, partial(self._read, name, layer))

    def _read(self, name: str, layer: Any, inputs: Any) -> None:
        if name in self._batch or not isinstance(inputs, Tensor):
            return
        try:
            found = batch_statistics(layer, inputs.detach(), name)
        except InputError as error:  # such as one sample, which a frozen layer takes
            self.missing((), str(error))
            return
        self._batch[name] = (found.mean, found.unbiased_spread)
        if layer.running_mean is not None:
            spread = getattr(layer, spread_name(layer))
            # copies, because the layer updates its own next
            self._running[name] = (
                layer.running_mean.to(found.mean, copy=True),
                spread.to(found.mean, copy=True),
            )

    def measure(self, context: StepContext) -> Values:
        """Return the gaps for each layer and comparison."""
        self._set_names(context)
        population = self._population(context)
        pairs = [(self._batch, self._running), (self._batch, population)]
        pairs.append((self._running, population))
        layers = batch_layers(context.observed.model)
        gaps = np.full((2, len(self._names or ()), len(COMPARISONS)), np.nan)
        for row, name in enumerate(self._names or ()):
            for column, (one, other) in enumerate(pairs):
                if name in one and name in other:
                    gaps[:, row, column] = _gap(layers[name], one[name], other[name])
        return {"mean_gap": gaps[0], "spread_gap": gaps[1]}

    def _set_names(self, context: StepContext) -> None:
        """Order the layers as in the first measured step; those that did not run come last."""
        if self._names is None:
            calls = context.order.first_calls
            layers = batch_layers(context.observed.model)
            self._names = sorted(layers, key=lambda name: calls.get(name, np.inf))

    def _population(self, context: StepContext) -> Mapping[str, Statistics]:
        if self.population_data is None:
            return {}
        # written to the context's copies of the buffers, which are discarded
        with context.batch_loss.at({}), silenced():  # such layers are NaN
            found = population_statistics(context.observed.model, self.population_data)
        return {name: (each.mean, each.spread) for name, each in found.items()}

    def coordinates(self, context: StepContext) -> dict[str, Any]:
        """Return the names of the layers and of the comparisons."""
        names = np.array(self._names or (), dtype=str)
        return {"norm_layer": names, "comparison": np.array(COMPARISONS)}

    def cost(self, layers: int, points: int) -> Cost:
        """Return nothing, or a pass over the population's data."""
        if self.population_data is None:
            return Cost(0)
        return Cost(1, "a forward pass over the population's data", exact=False)


def _gap(layer: Any, one: Statistics, other: Statistics) -> tuple[float, float]:
    eps = float(layer.eps)
    means = (one[0] - other[0].to(one[0])) ** 2
    spreads = one[1] + eps, other[1].to(one[1]) + eps
    scale = spreads[1] ** 2 if is_lp_norm(layer) else spreads[1]
    mean_gap = torch.sqrt((means / scale).mean())
    return mean_gap.item(), torch.sqrt(torch.log(spreads[0] / spreads[1]).square().mean()).item()
