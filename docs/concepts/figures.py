"""Draw the figures of the concept pages from normscope runs on the embedded digits.

    python docs/concepts/figures.py             # all figures, about a minute
    python docs/concepts/figures.py spectrum    # one of them

Each function below draws one figure and writes ``<name>.svg`` beside this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes

import normscope as ns
from normscope.plots.style import colour_of, hide_spines, new_figure

FOLDER = Path(__file__).parent
STYLE = {"font.size": 11, "svg.hashsalt": "normscope", "svg.fonttype": "path"}
LABELS = {"none": "no normalization", "batch": "BatchNorm", "layer": "LayerNorm"}
BATCH, RATE = 128, 0.03


def network(norm: str, **options: int | float) -> torch.nn.Module:
    """Return the fully connected network of all figures, with the same seed."""
    settings = {"input_shape": (1, 8, 8), "width": 100, **options}
    return ns.models.build("fully_connected", norm=norm, seed=0, **settings)


def first_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first training batch of the digits."""
    x, y = ns.data.load("digits").train
    return x[:BATCH], y[:BATCH]


def limit_of(norm: str) -> ns.learning_rate.Advice:
    """Return the thorough advice on a network under a normalization."""
    data = ns.data.load("digits").train
    return ns.max_learning_rate(
        network(norm), "cross_entropy", data, batch_size=BATCH, effort="thorough"
    )


def new_panel(xlabel: str, ylabel: str, height: float = 3.2) -> Axes:
    """Return labelled axes of a new figure, narrow enough that a phone shows its letters."""
    axes = new_figure(5.4, height).subplots()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    hide_spines(axes)
    return axes


def label_end(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Write the name of a line beside its last point."""
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", color=colour, va="center")


def legend_above(axes: Axes, title: str | None = None) -> None:
    """Put the legend in one row above the panel."""
    axes.legend(
        frameon=False,
        title=title,
        loc="lower center",
        bbox_to_anchor=(0.45, 1),
        ncols=4,
        handlelength=1,
        handletextpad=0.4,
        columnspacing=1,
        borderaxespad=0.2,
    )


def stability_limit() -> Axes:
    """Loss of short runs below and above the verified limit."""
    data = ns.data.load("digits").train
    advice = limit_of("batch")
    axes = new_panel("step", "loss / first loss")
    colours = {0.5: "#0072B2", 0.8: "#009E73", 1.25: "#E69F00", 4.0: "#D55E00"}
    for factor, colour in colours.items():
        problem = ns.Problem(network("batch"), "cross_entropy", data)
        optimizer = ns.sgd(factor * advice.limit)
        run = ns.fit(problem, optimizer, steps=100, batch_size=BATCH, divergence_factor=1e6)
        ratio = np.array(run.losses) / run.losses[0]
        axes.plot(ratio, color=colour, lw=1.3, label=f"{factor:g} x limit")
    axes.axhline(1.5, color="black", ls="--", lw=1)
    axes.annotate("unstable above 1.5", (100, 1.5), (0, 4), textcoords="offset points", ha="right")
    axes.set_yscale("log")
    legend_above(axes, f"learning rate (limit {advice.limit:.2g})")
    return axes


def modes() -> Axes:
    """Top eigenvalue of one network in three modes, with three normalizations."""
    axes = new_panel("", "top eigenvalue")
    wanted = ("train", "frozen", "eval")
    for place, norm in enumerate(LABELS):
        model = network(norm)
        for offset, mode in enumerate(wanted):
            found = ns.curvature.top_eigenvalue(
                model, "cross_entropy", first_batch(), kind="ggn", mode=mode
            )
            x = place + 0.27 * (offset - 1)
            bar = axes.bar(x, found.value, 0.24, color=colour_of(norm), alpha=1 - 0.3 * offset)
            axes.bar_label(bar, [f"{mode}\n{found.value:.3g}"], padding=2, fontsize=9)
    axes.set_xticks(range(len(LABELS)), list(LABELS.values()))
    axes.set_yscale("log")
    axes.margins(y=0.25)
    return axes


def spectrum() -> Axes:
    """Histogram of all eigenvalues of a small network's Hessian, with its parts named."""
    model = network("batch", width=20)
    matrix = ns.curvature.dense(model, "cross_entropy", first_batch(), kind="hessian")
    values = torch.linalg.eigvalsh(torch.as_tensor(matrix).double()).numpy()
    axes = new_panel("eigenvalue of the Hessian", f"eigenvalues, of {len(values)}")
    axes.hist(values, bins=160, color=colour_of("layer"))
    axes.set_yscale("log")
    named = {
        "negative\ncurvature": (values[0], colour_of("none")),
        "bulk: most directions\nare nearly flat": (0.0, colour_of("none")),
        f"top eigenvalue {values[-1]:.2g}": (values[-1], colour_of("batch")),
    }
    heights = (6, 700, 6)
    for (text, (x, colour)), height in zip(named.items(), heights, strict=True):
        place = {"ha": "left", "textcoords": "offset points"} if x == 0 else {"ha": "center"}
        target = (10, 0) if x == 0 else (x, 2 * height)
        arrow = None if x == 0 else {"arrowstyle": "->", "color": colour}
        start = (x, height) if x == 0 else (x, 1.3)
        axes.annotate(text, start, target, color=colour, arrowprops=arrow, **place)
    axes.margins(x=0.35)
    return axes


def bound_and_limit() -> Axes:
    """Curvature bound, prediction and verified limit under three normalizations."""
    axes = new_panel("learning rate", "", 2.6)
    marks = {"curvature bound": "s", "predicted": "D", "limit": "o"}
    for place, norm in enumerate(LABELS):
        advice = limit_of(norm)
        values = (advice.curvature_bound, advice.predicted, advice.limit)
        axes.plot(
            (min(values), max(values)), (place, place), color=colour_of(norm), lw=1, alpha=0.5
        )
        for (name, marker), value in zip(marks.items(), values, strict=True):
            face = colour_of(norm) if name == "limit" else "white"
            axes.plot(value, place, marker, color=colour_of(norm), mfc=face, ms=8)
    for name, marker in marks.items():
        axes.plot(
            [],
            [],
            marker,
            color="#555555",
            mfc="#555555" if name == "limit" else "white",
            label=name,
        )
    axes.set_yticks(range(len(LABELS)), list(LABELS.values()))
    axes.set_ylim(-0.6, len(LABELS) - 0.4)
    axes.set_xscale("log")
    legend_above(axes)
    return axes


def observed(norm: str, probe: str, steps: int = 40, **options: Any) -> ns.Scope:
    """Train with a scope attached, and return the scope."""
    torch.manual_seed(0)
    x, y = ns.data.load("digits").train
    model = network(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with ns.Scope(model, "cross_entropy", optimizer, [probe], every=1, **options) as scope:
        for _ in range(steps):
            batch = torch.randperm(len(x))[:BATCH]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            scope.step(x[batch], y[batch])
            optimizer.step()
    return scope


def smoothness() -> Axes:
    """Loss along the gradient at the first step of two networks."""
    axes = new_panel(
        f"distance along the gradient, in steps of learning rate {RATE}", "loss / loss at the start"
    )
    distances = tuple(np.linspace(0.25, 8, 32))
    for norm in ("none", "batch"):
        scope = observed(norm, "loss_variation", steps=1, distances=distances)
        first = scope.results.isel(step=0)
        ratio = np.concatenate([[1.0], first["ray_loss"].values / float(first["loss"])])
        axes.plot((0.0, *distances), ratio, color=colour_of(norm))
        label_end(axes, 8, ratio[-1], LABELS[norm], colour_of(norm))
    axes.axhline(1, color="#999999", lw=0.8, zorder=0)
    axes.set_ylim(0, 4)
    return axes


def covariate_shift() -> Axes:
    """Cosine of a layer's gradient before and after the layers below it are updated."""
    axes = new_panel("layer, from input to output", "cosine (1: no shift)", 3.0)
    for norm in ("none", "batch"):
        results = observed(norm, "covariate_shift").results
        cosine = results["shift_cosine"]
        cosine = cosine.isel(
            layer=[
                n
                for n, name in enumerate(cosine["layer"].values)
                if network(norm).get_submodule(str(name)).weight.dim() > 1
            ]
        )
        values = cosine.mean("step").values
        axes.plot(range(len(values)), values, "o-", color=colour_of(norm))
        label_end(axes, len(values) - 1, values[-1], LABELS[norm], colour_of(norm))
    axes.set_xticks(range(len(values)), [f"linear {n + 1}" for n in range(len(values))])
    axes.set_ylim(top=1.02)
    return axes


def mean_field() -> Axes:
    """Top eigenvalue over gamma: predicted from the architecture, and measured."""
    axes = new_panel("initial scale gamma of the norm layers", "top eigenvalue (Fisher)")
    gammas = np.geomspace(0.2, 3, 40)
    batch = (
        torch.randn(256, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
        first_batch()[1],
    )
    batch = (batch[0], batch[1].repeat(2))
    wide = network("batch", width=300)
    theory = ns.meanfield.predict(wide, (1, 8, 8), gamma=gammas)
    axes.plot(gammas, theory.lambda_max, color=colour_of("batch"), label="predicted, no data used")
    measured = [
        ns.curvature.top_eigenvalue(
            network("batch", width=300, gamma=gamma), "squared_error", batch, kind="fisher"
        ).value
        for gamma in gammas[::6]
    ]
    axes.plot(gammas[::6], measured, "o", color="black", label="measured")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([0.2, 0.5, 1, 2, 3], ["0.2", "0.5", "1", "2", "3"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return axes


FIGURES: dict[str, Callable[[], Axes]] = {
    draw.__name__: draw
    for draw in (
        stability_limit,
        modes,
        spectrum,
        bound_and_limit,
        smoothness,
        covariate_shift,
        mean_field,
    )
}


def main(names: list[str]) -> None:
    """Draw the named figures, or all."""
    for name in names or FIGURES:
        with rc_context(STYLE):
            axes = FIGURES[name]()
            axes.figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
        print(f"wrote {name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
