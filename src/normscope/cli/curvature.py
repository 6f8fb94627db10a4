"""``normscope curvature``: eigenvalues and spectrum of a model's curvature."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import load_problem
from normscope.cli.render import (
    check_figure,
    describe_parameters,
    draw_then_print,
    print_json,
    print_note,
)
from normscope.cli.sources import Source
from normscope.errors import NormscopeWarning
from normscope.import_path import call_user_code
from normscope.progress_bar import show_progress
from normscope.registry import check_choice

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from torch import nn

    from normscope.curvature import TopEigenvalue

_KIND = (
    "ggn (Gauss-Newton, of the loss), fisher (of half the squared error), hessian (of the loss) or "
    "another of normscope list kinds."
)
_WHICH = "largest, smallest, both, or magnitude (the largest by absolute value)."
_WHICHES = ("largest", "smallest", "both", "magnitude")
_PRODUCTS = "Give up after this many matrix-vector products; each costs about two gradients."
_LANCZOS = "Matrix-vector products for each random direction."
Kind = Annotated[str, opt.option("KIND", _KIND, kind="kinds")]
Count = Annotated[int, opt.number("How many eigenvalues.", "-k", min=1)]
Which = Annotated[str, opt.option("WHICH", _WHICH, choices=_WHICHES)]
Tolerance = Annotated[float, opt.number("Stop at this relative residual.")]
MaxProducts = Annotated[int | None, opt.number(_PRODUCTS, min=1, default="100 + 20 k")]
WholeSpectrum = Annotated[
    bool, opt.flag("--spectrum", "Also estimate the density of all eigenvalues.")
]
Probes = Annotated[int, opt.number("Random directions that the spectrum averages.", min=2)]
LanczosSteps = Annotated[int, opt.number(_LANCZOS, min=1)]


@command("curvature", "Eigenvalues and spectrum of a model's curvature.", own="Search")
def curvature(
    model: opt.Model,
    data: opt.Data,
    loss: opt.LossOfKind = "cross_entropy",
    kind: Kind = "ggn",
    mode: opt.Mode = "train",
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    batches: opt.Batches = 1,
    k: Count = 1,
    which: Which = "largest",
    tol: Tolerance = 1e-3,
    max_products: MaxProducts = None,
    spectrum: WholeSpectrum = False,
    probes: Probes = 5,
    lanczos_steps: LanczosSteps = 64,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
    out: opt.Figure = None,
) -> None:
    """Find the extreme eigenvalues of the Gauss-Newton, Fisher or Hessian matrix, in train mode.

    Exits with 1 if an eigenvalue did not converge.

    Example: normscope curvature examples/my_model.py:build --data examples/my_model.py:samples
    """
    source = Source(model, data, loss)
    sources.check_names(*source, norm)
    check_choice("mode", mode, opt.MODES)
    check_choice("choice of eigenvalues", which, _WHICHES)
    sources.check_kind(kind, *source)
    check_figure(out)
    problem, samples = load_problem(source, norm, option, seed, device, batches, batch_size)
    whose = samples if isinstance(samples, tuple) else problem[-1]  # what an error refers to
    common: dict[str, Any] = {"kind": kind, "mode": mode, "seed": seed}
    search = {**common, "k": k, "which": which, "tol": tol, "max_products": max_products}
    whole = {**common, "probes": probes, "lanczos_steps": lanczos_steps} if spectrum else None
    measure = partial(_measure, problem, whose, search, whole)
    top, density = call_user_code(str(source), measure)
    with draw_then_print(out, partial(_draw, top, density)) as figure:
        _print(top, density, source, figure, problem[0], as_json)
    if not top.converged:
        raise typer.Exit(1)


def _measure(
    problem: tuple[Any, Any, Any], whose: Any, search: dict[str, Any], whole: dict[str, Any] | None
) -> tuple[TopEigenvalue, xr.Dataset | None]:
    """Return the top eigenvalues, and the spectrum if its options are given."""
    from normscope.curvature import top_eigenvalue
    from normscope.curvature.spectrum import spectrum
    from normscope.problem.precheck import locate_errors, try_batches
    from normscope.problem.problem import Problem

    model, loss, batches = problem
    with locate_errors(Problem(model, loss, whose)):
        if len(batches) > 1:  # the search may reach the last one late
            try_batches(Problem(*problem), batches, search["mode"], search["seed"])
        with show_progress("curvature") as show, warnings.catch_warnings():
            warnings.simplefilter("ignore", NormscopeWarning)  # table and exit code show it
            top = top_eigenvalue(*problem, **search, progress=show, vectors=False)
        if whole is None:
            return top, None
        with show_progress("spectrum") as show:
            return top, spectrum(*problem, progress=show, **whole)


def _draw(top: TopEigenvalue, density: xr.Dataset | None, axes: Axes) -> None:
    if density is None:
        top.plot(axes)
        return
    from normscope.plots.spectrum import spectrum

    spectrum(density, axes)


def _print(
    top: TopEigenvalue,
    density: xr.Dataset | None,
    source: Source,
    figure: Path | None,
    network: nn.Module,
    as_json: bool,
) -> None:
    if as_json:
        path = None if figure is None else str(figure)
        print_json(
            {**source._asdict(), **top.to_dict(), "spectrum": _to_dict(density), "figure": path}
        )
        return
    print_note(str(top))
    if density is not None:
        print_note(_summary(density))
    print_note(f"\n{_basis(top, describe_parameters(network), source)}")
    if figure is not None:
        print(f"Figure: {figure}")


def _to_dict(density: xr.Dataset | None) -> dict[str, Any] | None:
    if density is None:
        return None
    arrays = {str(name): values.values.tolist() for name, values in density.variables.items()}
    return {**{str(name): value for name, value in density.attrs.items()}, **arrays}


def _basis(top: TopEigenvalue, parameters: str, source: Source) -> str:
    """Return what the numbers are of, in one line."""
    from normscope.curvature.kinds import matrix_name

    matrix = f"the {matrix_name(top.kind)}"
    if top.kind != "fisher":
        matrix += f" of {source.loss}"
    else:
        matrix += ", which is the curvature of half the squared error"
        if source.loss != "squared_error":
            matrix += f" and not of {source.loss} (--kind ggn or hessian is of that loss)"
    batches = f"batches of {top.batch_size}"
    if top.samples == top.batch_size:
        batches = f"one batch of {top.batch_size}"
    statistics = {
        "train": "the batch's statistics, differentiated through",
        "frozen": "the batch's statistics, as constants",
        "eval": "running statistics",
        "as_is": "each layer by its own training flag",
    }[top.mode]
    return (
        f"Measured: {matrix}; {source.model} on {source.data}, {batches}, mode {top.mode} "
        f"({statistics}), {parameters}."
    )


def _summary(density: xr.Dataset) -> str:
    """Return the trace, and the shares of eigenvalues near zero and below."""
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
