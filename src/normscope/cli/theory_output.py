"""What ``normscope theory`` prints: the predictions, and what each number is for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from normscope.meanfield import Prediction

__all__ = ["Basis", "print_as_json", "print_predictions"]


@dataclass(frozen=True)
class Basis:
    """What a prediction rests on.

    Args:
        model: its name or place.
        momentum: of SGD.
        data: whose inputs' moments were measured; None for iid normal ones.
        parameters: weights or all.
        network: that was read.
    """

    model: str
    momentum: float
    data: str | None
    parameters: str
    network: nn.Module

    @property
    def sentence(self) -> str:
        """In one line."""
        inputs = f"inputs of {self.data}" if self.data else "iid normal inputs (--data: yours)"
        counted = "weights alone (--parameters all: with biases, scales and shifts)"
        if self.parameters == "all":
            counted = "all parameters"
        return (
            "Of: the Fisher matrix, which is the curvature of half the squared error; initial "
            f"weights, {inputs}, {counted}."
        )

    @property
    def outputs(self) -> int:
        """Of the last linear layer; 0 if there is none."""
        sizes = [getattr(module, "out_features", 0) for module in self.network.modules()]
        return next((int(size) for size in reversed(sizes) if size), 0)


def print_as_json(
    found: list[Prediction], refused: dict[str, str], figure: Path | None, basis: Basis
) -> None:
    """Print strict JSON; the arguments are those of `print_predictions`."""
    from normscope.cli.output import print_json

    answers = [_plain(each, basis.momentum) for each in found]
    source = {"model": basis.model, "momentum": basis.momentum}
    path = None if figure is None else str(figure)
    print_json({**source, "closures": answers, "refused": refused, "figure": path})


def print_predictions(
    found: list[Prediction], refused: dict[str, str], figure: Path | None, basis: Basis
) -> None:
    """Print a table for each closure, and below them what the numbers are of.

    Args:
        found: one for each closure.
        refused: why a closure has none, by its name.
        figure: where it was drawn, if it was.
        basis: what the numbers rest on.
    """
    from normscope.cli.tables import print_note, print_text, shown_width

    momentum = basis.momentum
    for each in found:
        print_text(each.text(shown_width()))
        if momentum and each.gamma is None and each.lambda_max is not None:
            rate = each.max_learning_rate(momentum)
            print(f"with momentum {momentum:g}: learning rates below {rate:.4g}")
        print()
    for name, reason in refused.items():
        print_note(f"{name}: {reason}")
    print_note(basis.sentence)
    print_note(_other_loss(found[0], momentum, basis.outputs))
    data = f" --data {basis.data} measures" if basis.data else ", with --data, measures"
    print_note(f"normscope lr {basis.model}{data} the limit for a loss and data.")
    if figure is not None:
        print(f"Figure: {figure}")


def _other_loss(prediction: Prediction, momentum: float, outputs: int) -> str:
    """By how much the numbers change for the cross-entropy."""
    from normscope.meanfield.softmax import output_curvature

    whose = "For cross_entropy its Gauss-Newton matrix counts"
    if prediction.gamma is not None or prediction.lambda_max is None or outputs < 2:
        return f"{whose}, whose eigenvalues are smaller by the softmax's curvature."
    factor = float(output_curvature("cross_entropy", prediction, outputs))
    rate = prediction.max_learning_rate(momentum, factor)
    return (
        f"{whose}: about {factor:.3g} times these eigenvalues with {outputs} outputs, learning "
        f"rates below {rate:.4g} by closure {prediction.closure}."
    )


def _plain(prediction: Prediction, momentum: float) -> dict[str, Any]:
    rate: Any = prediction.max_learning_rate(momentum)
    plain = rate.tolist() if hasattr(rate, "tolist") else rate
    return {**prediction.to_dict(), "max_learning_rate": plain}
