"""``normscope landscape``: the loss surface around the weights of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import load_problem
from normscope.cli.render import (
    check_figure,
    check_file,
    print_json,
    print_text,
    resumable,
    save_figure,
    shown_width,
    warnings_as_notes,
    write_then_print,
)
from normscope.cli.sources import Source
from normscope.errors import InputError, UnknownNameError
from normscope.import_path import call_user_code
from normscope.progress_bar import show_progress
from normscope.registry import check_choice, unknown_name

if TYPE_CHECKING:
    from normscope.landscape import Surface

_NAMES = ("random", "gradient", "hessian", "ggn", "checkpoints")
_SCALINGS = ("filter", "layer", "none")
_MODES = ("train", "population", "eval", "as_is")
_KINDS = ("contour", "3d")
_FIGURES = (".svg", ".png", ".pdf")
_NUMBERS, _PAGES = (".nc", ".csv", ".vtk"), (".html", ".htm")
_DIRECTIONS = (
    "random, gradient, hessian or ggn (top eigenvectors), checkpoints (principal components), or "
    "one for each axis: hessian,random."
)
_SCALING = "Length of the directions: filter or layer (that of the weights), none (one)."
_MODE = (
    "Statistics of BatchNorm at each point: train (the batch's), population (recomputed), eval "
    "(the running ones of the centre) or as_is."
)
_EXTENT = "Ends of the axes: a number, or LOW,HIGH."
_REFINE = "Relative tolerance: interpolate where the surface is smooth."
_CHECKPOINTS = "A file with a state dict, whose place is drawn; may be repeated, in order."
_STORE = "Keep the parts here, so that the same command resumes."
_OUT = "Figure (.svg, .png), page (.html) or numbers (.nc, .csv, .vtk); may be repeated."
Directions = Annotated[str, opt.option("NAMES", _DIRECTIONS, choices=_NAMES)]
Dimensions = Annotated[int, opt.number("Axes of one named direction, 1 or 2.", min=1, max=2)]
Scaling = Annotated[
    str | None,
    opt.option("NAME", _SCALING, choices=_SCALINGS, default="filter if random, else none"),
]
Mode = Annotated[str, opt.option("MODE", _MODE, choices=_MODES, group=opt.DATA)]
Extent = Annotated[
    str | None, opt.option("RANGE", _EXTENT, default="1, or what covers the checkpoints")
]
Points = Annotated[int, opt.number("Points of each axis.", min=3)]
Refine = Annotated[float | None, opt.number(_REFINE, default="measure all points")]
_WEIGHTS = "A state dict to load as the centre."
Weights = Annotated[
    Path | None, opt.option("FILE", _WEIGHTS, default="the model's", group=opt.DATA)
]
Checkpoints = Annotated[list[Path] | None, opt.option("FILE", _CHECKPOINTS, "--checkpoint")]
NoHessian = Annotated[bool, opt.flag("--no-hessian", "Leave out d'Hd of each direction.")]
StoreFile = Annotated[
    Path | None, opt.option("FILE", _STORE, "--store", default="memory", group=opt.COMPUTATION)
]
_ALL_THREADS = "all if there is one worker"
Workers = Annotated[
    int, opt.number("Parts computed at the same time.", min=1, group=opt.COMPUTATION)
]
Threads = Annotated[
    int | None,
    opt.number("Threads of each worker.", min=1, default=_ALL_THREADS, group=opt.COMPUTATION),
]
Kind = Annotated[
    str, opt.option("KIND", "Of the figure: contour or 3d.", choices=_KINDS, group=opt.OUTPUT)
]
Out = Annotated[list[Path] | None, opt.option("FILE", _OUT, "--out", "-o", group=opt.OUTPUT)]


@command("landscape", "Loss surface around a model's weights.", own="Directions and grid")
def landscape(
    model: opt.Model,
    data: opt.Data,
    loss: opt.Loss = "cross_entropy",
    directions: Directions = "random",
    mode: Mode = "train",
    dimensions: Dimensions = 2,
    scaling: Scaling = None,
    extent: Extent = None,
    points: Points = 25,
    refine: Refine = None,
    weights: Weights = None,
    checkpoints: Checkpoints = None,
    no_hessian: NoHessian = False,
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    batches: opt.Batches = 1,
    store: StoreFile = None,
    engine: opt.EngineName = "local",
    workers: Workers = 1,
    threads: Threads = None,
    address: opt.Address = None,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    kind: Kind = "contour",
    as_json: opt.Json = False,
    out: Out = None,
) -> None:
    """Loss on a line or plane through the weights, with the batch statistics of training.

    With --mode eval, BatchNorm keeps the running statistics of the centre at every point, so that
    the surface shows their mismatch too. Files that end in .html can be turned and sliced.

    Example: normscope landscape fully_connected --data digits --option width=20 --points 9
    """
    source = Source(model, data, loss)
    sources.check_names(*source, norm)
    names = _check_choices(directions, mode, scaling, kind)
    for file in out or ():
        _check_out(file)
    problem, _ = load_problem(source, norm, option, seed, device, batches, batch_size)
    axes = {"directions": names if len(names) > 1 else names[0], "dimensions": dimensions}
    grid = {"scaling": scaling, "extent": _extent(extent), "points": points, "refine": refine}
    path = {"centre": weights, "checkpoints": checkpoints or ()}
    run = {"engine": engine, "workers": workers, "threads": threads, "address": address}
    more = {"mode": mode, "hessian": not no_hessian, "seed": seed, "store": store}
    settings: dict[str, Any] = {**axes, **grid, **path, **run, **more}
    found = call_user_code(str(source), partial(_measure, problem, settings))
    with write_then_print(partial(_write, found, out or (), kind)) as written:
        _print(found, source, written or [], as_json)


def _check_choices(directions: str, mode: str, scaling: str | None, kind: str) -> list[str]:
    """Return the names of the directions; raise for an unknown choice, before torch is loaded."""
    names = [name.strip() for name in directions.split(",")]
    for name in names:
        check_choice("direction", name, _NAMES)
    check_choice("mode", mode, _MODES)
    check_choice("kind of plot", kind, _KINDS)
    if scaling is not None:
        check_choice("scaling", scaling, _SCALINGS)
    return names


def _check_out(file: Path) -> None:
    """Raise an error if a file could not be written, or has no known suffix."""
    if file.suffix.lower() in (*_NUMBERS, *_PAGES):
        check_file(file, "surface", "surface.html")
        return
    try:
        check_figure(file)
    except UnknownNameError:
        known = (*_FIGURES, *_PAGES, *_NUMBERS)
        raise unknown_name("format of a surface", file.suffix, known) from None


def _extent(text: str | None) -> float | tuple[float, float] | None:
    """Return the ends of the axes.

    >>> _extent("2"), _extent("-1,3")
    (2.0, (-1.0, 3.0))
    """
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    raise InputError(f"--extent takes a number or LOW,HIGH, got {text!r}.")


def _measure(problem: tuple[Any, Any, Any], settings: dict[str, Any]) -> Surface:
    from normscope.landscape import surface

    measure: Callable[..., Surface] = partial(surface, *problem, **settings)
    with show_progress("surface") as show:
        if settings["store"] is None:
            with warnings_as_notes():
                return measure(progress=show)
        with resumable(settings["store"]):
            return measure(progress=show)


def _write(found: Surface, out: Sequence[Path], kind: str) -> list[str]:
    """Write the files; return their paths."""
    for file in out:
        suffix = file.suffix.lower()
        if suffix in _NUMBERS:
            found.write(file)
        elif suffix in _PAGES:
            found.report(file)
        else:
            figure: Any = found.plot(kind=kind).get_figure(root=True)
            save_figure(figure, file)
    return [str(file) for file in out]


def _print(found: Surface, source: Source, files: list[str], as_json: bool) -> None:
    if as_json:
        values = {str(name): found.dataset[name].values.tolist() for name in found.loss.dims}
        numbers = {**values, "loss_values": found.loss.values.tolist()}
        print_json({**found.to_dict(), **source._asdict(), **numbers, "files": files})
        return
    print_text(found.text(shown_width()))
    for file in files:
        print(f"Written: {file}")
