"""What ``normscope curvature`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import xarray as xr

    from normscope.curvature import TopEigenvalue

__all__ = ["print_curvature"]


def print_curvature(
    top: TopEigenvalue,
    density: xr.Dataset | None,
    out: Path | None,
    source: dict[str, str],
    parameters: str,
    as_json: bool,
) -> None:
    """Print eigenvalues, spectrum and what they are of.

    Args:
        top: the extreme eigenvalues.
        density: of all eigenvalues, if it was asked for.
        out: the figure that was drawn.
        source: model, data and loss by name.
        parameters: which ones, in words.
        as_json: for a program.
    """
    from normscope.cli.output import print_json
    from normscope.cli.tables import print_note

    if as_json:
        figure = None if out is None else str(out)
        whole = None if density is None else _plain(density)
        print_json({**source, **top.to_dict(), "spectrum": whole, "figure": figure})
        return
    print_note(str(top))
    if density is not None:
        print_note(_summary(density))
    print_note(f"\n{_basis(top, parameters, **source)}")
    if out is not None:
        typer.echo(f"Figure: {out}")


def _basis(top: TopEigenvalue, parameters: str, model: str, data: str, loss: str) -> str:
    """What the numbers are of, in one line."""
    matrix = {
        "fisher": "the Fisher matrix, which is the curvature of half the squared error",
        "ggn": f"the Gauss-Newton matrix of {loss}",
        "hessian": f"the Hessian of {loss}",
    }[top.kind]
    if top.kind == "fisher" and loss != "squared_error":
        matrix += f" and not of {loss} (--kind ggn: of that, as normscope lr has it)"
    batches = f"batches of {top.batch_size}"
    if top.samples == top.batch_size:
        batches = f"one batch of {top.batch_size}"
    statistics = {
        "train": "the batch's statistics, differentiated through",
        "frozen": "the batch's statistics, as constants",
        "eval": "running statistics",
    }[top.mode]
    return (
        f"Of: {matrix}; {model} on {data}, {batches}, mode {top.mode} ({statistics}), {parameters}."
    )


def _plain(density: xr.Dataset) -> dict[str, object]:
    """The spectrum as plain lists and numbers."""
    arrays = {str(name): values.values.tolist() for name, values in density.variables.items()}
    return {**{str(name): value for name, value in density.attrs.items()}, **arrays}


def _summary(density: xr.Dataset) -> str:
    """The trace, and where the eigenvalues lie, beside the largest."""
    import numpy as np

    size = density.attrs["parameters"]
    mean, error = (float(density[name].sel(order=1)) for name in ("moment", "moment_error"))
    bound = 0.01 * float(abs(density["nodes"]).max())
    below, up_to = np.interp([-bound, bound], density["eigenvalue"], density["cumulative"])
    steps = density.attrs["lanczos_steps"]
    return (
        f"spectrum of {size} eigenvalues: trace {mean * size:.5g} ± {error * size:.2g}; "
        f"about {up_to - below:.0%} within ±{bound:.2g} and {below:.0%} below, as far as {steps} "
        "steps resolve it; "
        f"{density.attrs['products']} matrix-vector products, {density.attrs['seconds']:.2f} s"
    )
