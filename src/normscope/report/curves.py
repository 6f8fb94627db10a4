"""Loss curves of trainings that a store keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscope.report.document import Picture
from normscope.report.pictures import picture_of
from normscope.report.records_table import parameter_words
from normscope.report.words import counted
from normscope.results import Record

__all__ = ["curves_picture"]

_MOST = 8  # lines that are told apart


def curves_picture(trainings: Sequence[Record], varying: Sequence[str]) -> Picture | None:
    """The losses of the first trainings over their steps; None if there are none.

    Args:
        trainings: records whose datasets have the losses.
        varying: the parameters that tell them apart.
    """
    if not trainings:
        return None
    from normscope.plots.axes import logarithmic_axis, step_axis
    from normscope.plots.style import new_figure

    figure = new_figure(5.6, 3.8)
    axes = figure.subplots()
    words, positive = [], True
    for record in trainings[:_MOST]:
        loss = record.read()["loss"]
        steps = loss["step"].values if "step" in loss.coords else np.arange(loss.size)
        name = parameter_words(record, varying)
        axes.plot(steps, loss.values, lw=1.2, label=name)
        words.append(f"{name}: {float(loss[0]):.3g} to {float(loss[-1]):.3g}")
        positive &= bool((loss > 0).all())
    if positive:
        logarithmic_axis(axes, "y")
    step_axis(axes)
    axes.set_ylabel("loss")
    axes.legend(frameon=False, fontsize="x-small")
    more = len(trainings) - len(words)
    caption = "Loss over the steps" + (
        f"; {counted(more, 'further training')} not drawn." if more else "."
    )
    return picture_of(figure, f"Loss over the steps. {'; '.join(words)}.", caption)
