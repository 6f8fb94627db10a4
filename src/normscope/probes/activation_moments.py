"""Mean and variance of sampled activations, and their change from step to step."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.kinds import NoNorm, PositionNorm, is_norm
from normscope.probes.execution import weight_layers
from normscope.probes.probe import FORWARD, PROBES, Cost, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext
    from normscope.probes.execution import ForwardHooks

_MOMENTS = ("activation_mean", "activation_variance")


@PROBES.register(name="activation_moments")
class ActivationMoments(Probe):
    """Mean and variance over the batch of a few units of each layer, and their change in one step.

    A layer's activations are its outputs or, if a norm layer reads these directly, that layer's
    outputs: the values before the nonlinearity. For convolutions a unit is a channel, and the
    moments are over batch and positions. The units are drawn once, by the scope's seed. Measures
    ``activation_mean``, ``activation_variance`` (1/m), and the absolute change of both between
    this step and the next, each on its own batch: ``activation_mean_change`` and
    ``activation_variance_change``. The next step takes a forward pass for this even if it is not
    measured.

    Reference: santurkar2018, Figures 7, 8 and 14.

    Args:
        units: number of units of each layer; NaN beyond those of a smaller layer.
        bins: of a histogram of each unit's activations, ``histogram``, with equal bins from
            ``histogram_low`` to ``histogram_high``, the minimum and the maximum; 0 for none.
        every: minimum number of training steps between two measurements.
    """

    needs_gradient = False
    needs_next = True

    def __init__(self, units: int = 8, bins: int = 0, every: int | None = None) -> None:
        super().__init__(every)
        if not (isinstance(units, int) and isinstance(bins, int)):
            raise ArgumentTypeError(f"units and bins must be integers, got {units!r} and {bins!r}.")
        if units < 1 or bins < 0:
            raise InputError(f"units must be positive, bins not negative, got {units} and {bins}.")
        self.units = units
        self.bins = bins
        self.reset(0)

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        moments = (*_MOMENTS, *(f"{name}_change" for name in _MOMENTS))
        found: Dimensions = dict.fromkeys(moments, ("layer", "unit"))
        if self.bins:
            found |= {f"histogram_{end}": ("layer", "unit") for end in ("low", "high")}
            found["histogram"] = ("layer", "unit", "bin")
        return found

    def reset(self, seed: int) -> None:
        """Clear the chosen units and the last moments."""
        self._seed = seed
        self._chosen: dict[str, np.ndarray] = {}
        self._seen: dict[str, Tensor] = {}
        self._last_output: tuple[str, int, Any] | None = None
        self._before: Values = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the moments of the last measured step; the next step compares with them."""
        before = {name: torch.from_numpy(values.copy()) for name, values in self._before.items()}
        return {**super().state_dict(), "before": before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments of the last measured step."""
        super().load_state_dict(state)
        self._before = {name: values.cpu().numpy() for name, values in state["before"].items()}

    def add_hooks(self, hooks: ForwardHooks) -> None:
        """Sample the outputs of the layers and of the norm layers behind them."""
        self._seen = {}
        self._last_output = None
        for name, layer in weight_layers(hooks.model).items():
            axis = 1 if isinstance(layer, _ConvNd) else -1
            hooks.after_call(layer, partial(self._layer_ran, name, axis))
        modules = list(hooks.model.modules())
        # a layer inside a PositionNorm gets rows, not the tensor that the layer before returned
        inner = {id(module.norm) for module in modules if isinstance(module, PositionNorm)}
        for module in modules:
            outer = isinstance(module, NoNorm | PositionNorm) or is_norm(module)
            if outer and id(module) not in inner:
                hooks.after_call(module, self._norm_ran)

    def _layer_ran(self, name: str, axis: int, _: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(output, Tensor) and output.dim() > 1 and name not in self._seen:
            self._seen[name] = self._sample(name, axis, output)
            self._last_output = (name, axis, output)

    def _norm_ran(self, given: Any, output: Any) -> None:
        if self._last_output is not None and given is self._last_output[2]:
            name, axis, _ = self._last_output
            self._seen[name] = self._sample(name, axis, output)
        self._last_output = None

    def _sample(self, name: str, axis: int, output: Tensor) -> Tensor:
        """Return the values of the chosen units, (units, values), in double precision."""
        count = output.shape[axis]
        if name not in self._chosen:
            generator = np.random.default_rng([self._seed % 2**64, zlib.crc32(name.encode())])
            chosen = generator.choice(count, min(self.units, count), replace=False)
            self._chosen[name] = np.sort(chosen)
        index = torch.as_tensor(self._chosen[name], device=output.device)
        values = output.detach().index_select(axis, index).movedim(axis, 0).flatten(1)
        return values.to(torch.float32 if values.device.type == "mps" else torch.float64)

    def measure(self, context: StepContext) -> Values:
        """Return the moments of this step, with the histograms."""
        values = self._moments(context)
        self._before = values
        self._last_output = None
        return {**values, **(self._histograms(context) if self.bins else {})}

    def measure_next(self, context: StepContext) -> Values:
        """Return the change of the moments from the measured step to this one."""
        after = self._moments(context)
        return {f"{name}_change": np.abs(after[name] - self._before[name]) for name in _MOMENTS}

    def _moments(self, context: StepContext) -> Values:
        values = {name: np.full((len(context.layers), self.units), np.nan) for name in _MOMENTS}
        for row, layer in enumerate(context.layers):
            if layer.name in self._seen:
                seen = self._seen[layer.name]
                variance, mean = torch.var_mean(seen, 1, correction=0)
                values["activation_mean"][row, : len(seen)] = mean.cpu().numpy()
                values["activation_variance"][row, : len(seen)] = variance.cpu().numpy()
        return values

    def _histograms(self, context: StepContext) -> Values:
        shape = (len(context.layers), self.units)
        low, high = np.full(shape, np.nan), np.full(shape, np.nan)
        counts = np.full((*shape, self.bins), np.nan)
        for row, layer in enumerate(context.layers):
            for unit, values in enumerate(self._seen.get(layer.name, ())):
                numbers = values.cpu().numpy()
                if np.isfinite(numbers).all():
                    ends = low[row, unit], high[row, unit] = numbers.min(), numbers.max()
                    counts[row, unit] = np.histogram(numbers, self.bins, ends)[0]
        return {"histogram": counts, "histogram_low": low, "histogram_high": high}

    def coordinates(self, context: StepContext) -> dict[str, Any]:
        """Return the channel of each unit; -1 where a layer has fewer."""
        channels = np.full((len(context.layers), self.units), -1)
        for row, layer in enumerate(context.layers):
            chosen = self._chosen.get(layer.name, np.empty(0, int))
            channels[row, : len(chosen)] = chosen
        labels = {"unit": np.arange(self.units), "channel": (("layer", "unit"), channels)}
        return {**labels, "bin": np.arange(self.bins)} if self.bins else labels

    def cost(self, layers: int, points: int) -> Cost:
        """Return a forward pass at the next step."""
        return Cost(FORWARD, "a forward pass at the next step, if that is not measured itself")
