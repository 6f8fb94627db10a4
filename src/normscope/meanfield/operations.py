"""What a node of the graph does to order parameters and to the gradients that come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from normscope.meanfield.field import Field, Signal

__all__ = ["LARGEST_RESOLVED_MAP", "Operation", "Setting", "Weighted"]

LARGEST_RESOLVED_MAP = 600  # positions; a kernel holds the square of it


@dataclass(frozen=True)
class Setting:
    """How to flow through a graph.

    Args:
        through_statistics: whether gradients flow through the batch statistics (closure train) or
            take them as constants (frozen).
        batch_size: samples in a batch.
        resolve: whether small maps hold every position by itself.
    """

    through_statistics: bool = True
    batch_size: float = float("inf")
    resolve: bool = False

    def resolves(self, count: int) -> bool:
        """Whether a map of so many positions is held position by position."""
        return count == 1 or (self.resolve and count <= LARGEST_RESOLVED_MAP)


class Operation(ABC):
    """One step of a network."""

    @property
    def needs_positions(self) -> bool:
        """Whether it makes the positions of a map differ, or weighs them differently."""
        return False

    @abstractmethod
    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output.

        Args:
            fields: those of its inputs.
            setting: how to flow.

        Returns:
            The field.
        """

    @abstractmethod
    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its inputs.

        Args:
            signal: the gradients at its output.
            fields: the order parameters of its inputs.
            output: those of its output.
            setting: how to flow.

        Returns:
            One signal for each input.
        """


class Weighted(Operation):
    """A step with random weights: linear or convolution.

    Attributes:
        fan_in: inputs of one unit.
        weight_variance: variance of a weight times fan_in.
        bias_variance: variance of a bias.
    """

    fan_in: int
    weight_variance: float
    bias_variance: float
    has_bias: bool
