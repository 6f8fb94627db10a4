"""``normscope curvature``: eigenvalues and spectrum of a model's curvature."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.curvature_output import print_curvature
from normscope.cli.figures import check_figure, draw_on
from normscope.cli.names import completion_of
from normscope.cli.options import (
    BatchSize,
    Data,
    Device,
    Figure,
    Json,
    LossOfKind,
    Model,
    ModelOptions,
    Norm,
    Seed,
)

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

    from normscope.curvature import TopEigenvalue
    from normscope.curvature.search import Progress

Subject = tuple[Any, Any, Any]  # model, loss, data

Kind = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="fisher (of half the squared error), ggn (Gauss-Newton, of the loss) or hessian (of "
        "the loss).",
        autocompletion=completion_of("fisher", "ggn", "hessian"),
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="Statistics of the norm layers: train (the batch's, differentiated through, as "
        "training does), frozen (the batch's, as constants) or eval (the running ones).",
        autocompletion=completion_of("train", "frozen", "eval"),
    ),
]
Batches = Annotated[int, typer.Option(min=1, metavar="NUMBER", help="Batches to average over.")]
Count = Annotated[int, typer.Option("-k", min=1, metavar="NUMBER", help="How many eigenvalues.")]
Which = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="largest, smallest, both, or magnitude (the largest by absolute value).",
        autocompletion=completion_of("largest", "smallest", "both", "magnitude"),
    ),
]
Tolerance = Annotated[
    float, typer.Option(metavar="NUMBER", help="How exact: relative residual to stop at.")
]
MaxProducts = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Matrix-vector products to give up after; each costs about two gradients.",
        show_default="100 + 20 k",
    ),
]
WholeSpectrum = Annotated[
    bool, typer.Option("--spectrum", help="Also the density of all eigenvalues.")
]
Probes = Annotated[
    int, typer.Option(min=2, metavar="NUMBER", help="Random directions that the spectrum averages.")
]
LanczosSteps = Annotated[
    int,
    typer.Option(min=1, metavar="NUMBER", help="Matrix-vector products for each random direction."),
]


def curvature(
    model: Model,
    data: Data,
    loss: LossOfKind = "cross_entropy",
    kind: Kind = "fisher",
    mode: Mode = "train",
    norm: Norm = None,
    option: ModelOptions = None,
    batch_size: BatchSize = None,
    batches: Batches = 1,
    k: Count = 1,
    which: Which = "largest",
    tol: Tolerance = 1e-3,
    max_products: MaxProducts = None,
    spectrum: WholeSpectrum = False,
    probes: Probes = 5,
    lanczos_steps: LanczosSteps = 64,
    device: Device = None,
    seed: Seed = 0,
    as_json: Json = False,
    out: Figure = None,
) -> None:
    """Extreme eigenvalues of the Fisher, Gauss-Newton or Hessian matrix, as training sees it.

    Exits with 1 if an eigenvalue did not converge.

    Example: normscope curvature examples/my_model.py:build --data examples/my_model.py:samples
    """
    from normscope.cli import sources
    from normscope.cli.batches import chosen_batches, note_conversion
    from normscope.cli.trained import trained_words
    from normscope.import_path import call_user_code

    sources.check_names(model, data, loss, norm)
    check_figure(out)
    samples = sources.load_data(data, seed)
    chosen = chosen_batches(samples, batch_size, batches, seed)
    network = sources.load_model(model, samples, norm, option or (), seed, device)
    note_conversion(chosen, network)
    problem = (network, sources.load_loss(loss), chosen)
    common: dict[str, Any] = {"kind": kind, "mode": mode, "seed": seed}
    extreme = (k, max_products, {**common, "which": which, "tol": tol})
    whole = (probes, lanczos_steps, common) if spectrum else None
    whose = samples if isinstance(samples, tuple) else chosen  # numbers of samples are of these
    measure = partial(_measured, problem, whose, extreme, whole)
    top, density = call_user_code(f"{model} with {loss} on {data}", measure)
    source = {"model": model, "data": data, "loss": loss}
    with draw_on(out, partial(_draw, top, density)) as figure:
        print_curvature(top, density, figure, source, trained_words(network), as_json)
    if not top.converged:
        raise typer.Exit(1)


def _measured(
    problem: Subject,
    whose: Any,
    extreme: tuple[int, int | None, dict[str, Any]],
    whole: tuple[int, int, dict[str, Any]] | None,
) -> tuple[TopEigenvalue, xr.Dataset | None]:
    """The extreme eigenvalues, and the density of all if it is asked for."""
    from normscope.problem.precheck import locate_errors, try_batches
    from normscope.problem.problem import Problem

    options = extreme[-1]
    with locate_errors(Problem(*problem[:-1], whose)):
        if len(problem[-1]) > 1:  # the search may come to the last one late
            try_batches(Problem(*problem), problem[-1], options["mode"], options["seed"])
        top = _eigenvalues(problem, *extreme)
        return top, None if whole is None else _density(problem, *whole)


def _eigenvalues(
    problem: Subject, k: int, max_products: int | None, options: dict[str, Any]
) -> TopEigenvalue:
    from normscope.cli.output import progress
    from normscope.curvature import top_eigenvalue
    from normscope.errors import NormscopeWarning

    allowed = 100 + 20 * k if max_products is None else max_products
    counted = "product {} of at most {}"
    with progress("curvature", allowed, counted) as begin, warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)  # the table says it, and the exit code
        tell = _teller(begin)
        return top_eigenvalue(
            *problem, k=k, max_products=allowed, progress=tell, vectors=False, **options
        )


def _teller(begin: Callable[[str], None]) -> Callable[[Progress], None]:
    def tell(state: Progress) -> None:
        begin(f"eigenvalue {state.value:.5g} (residual {state.residual:.1e})")

    return tell


def _density(problem: Subject, probes: int, steps: int, options: dict[str, Any]) -> xr.Dataset:
    from normscope.cli.output import progress
    from normscope.curvature.spectrum import spectrum

    with progress("spectrum") as tell_text:

        def tell(done: int, planned: int) -> None:
            tell_text(f"{done} of {planned} matrix-vector products")

        return spectrum(*problem, probes=probes, lanczos_steps=steps, progress=tell, **options)


def _draw(top: TopEigenvalue, density: xr.Dataset | None, axes: Axes) -> None:
    if density is None:
        top.plot(axes)
        return
    from normscope.plots.spectrum import spectrum

    spectrum(density, axes)
