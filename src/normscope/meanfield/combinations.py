"""Functions of several branches: sums, products and concatenations of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import ShapeError
from normscope.meanfield.field import Combination, Field, Setting, Signal
from normscope.meanfield.integrals import Array


@dataclass(frozen=True)
class Addition(Combination):
    """The sum of two branches whose units are independent, because weights separate them."""

    def apply(self, fields: Sequence[Field], setting: Setting) -> Field:
        """Return the order parameters of its output."""
        first, second = _alike(fields)
        crossed = first.mean[:, :, None] * second.mean[:, None, :]
        kernel = first.kernel + second.kernel + (crossed + crossed.swapaxes(-1, -2))[:, None]
        gaussian = first.gaussian and second.gaussian
        mean = first.mean + second.mean
        return replace(first, mean=mean, kernel=kernel, gathered=None, gaussian=gaussian)

    def pull_back(
        self, signal: Signal, fields: Sequence[Field], which: int, output: Field, setting: Setting
    ) -> Signal:
        """Return the gradients at one of its inputs."""
        return signal if fields[which].resolved == output.resolved else signal.collapsed()


@dataclass(frozen=True)
class Product(Combination):
    """The product, unit by unit, of two branches whose units are independent."""

    def apply(self, fields: Sequence[Field], setting: Setting) -> Field:
        """Return the order parameters of its output."""
        first, second = _alike(fields)
        return first.mixed(mean=first.mean * second.mean, kernel=first.kernel * second.kernel)

    def pull_back(
        self, signal: Signal, fields: Sequence[Field], which: int, output: Field, setting: Setting
    ) -> Signal:
        """Return the gradients at one of its inputs: those above times the other branch."""
        other = fields[1 - which]
        other = other.expanded() if output.resolved else other
        below = replace(signal, kernel=signal.kernel * other.kernel, centred=False, bent=None)
        return below if fields[which].resolved == output.resolved else below.collapsed()


@dataclass(frozen=True)
class Concatenation(Combination):
    """The channels of several branches side by side, which weights then mix.

    Means over channels are those over the branches, weighted by their channels.
    """

    def apply(self, fields: Sequence[Field], setting: Setting) -> Field:
        """Return the order parameters of its output."""
        resolved = any(each.resolved for each in fields)
        parts = [each.expanded() if resolved else each for each in fields]
        if len({each.positions for each in parts}) > 1:
            sizes = [each.positions for each in parts]
            raise ShapeError(f"maps to be concatenated must have one size, got {sizes}.")
        return parts[0].mixed(
            channels=sum(each.channels for each in parts),
            mean=_mean_over_channels([each.mean for each in parts], parts),
            kernel=_mean_over_channels([each.kernel for each in parts], parts),
        )

    def pull_back(
        self, signal: Signal, fields: Sequence[Field], which: int, output: Field, setting: Setting
    ) -> Signal:
        """Return the gradients at one of its inputs: its share of the sums over channels."""
        share = fields[which].channels / output.channels
        below = signal.mapped(lambda kernel: kernel * share)
        return below if fields[which].resolved == output.resolved else below.collapsed()


def _alike(fields: Sequence[Field]) -> tuple[Field, Field]:
    """Return two fields of one shape, both resolved if one is."""
    first, second = fields
    if (first.channels, first.positions) != (second.channels, second.positions):
        shapes = [(each.channels, *each.positions) for each in (first, second)]
        raise ShapeError(f"branches to be added must have one shape, got {shapes}.")
    if first.resolved != second.resolved:
        first, second = first.expanded(), second.expanded()
    return first, second


def _mean_over_channels(values: Sequence[Array], fields: Sequence[Field]) -> Array:
    total = sum(each.channels for each in fields)
    parts = (v * (each.channels / total) for v, each in zip(values, fields, strict=True))
    return np.asarray(sum(parts))
