"""``normscope demo``: everything normscope measures, on embedded data, and a report of it."""

from __future__ import annotations

import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.render import (
    check_folder,
    print_json,
    print_table,
    resumable,
    shown_width,
    write_then_print,
)
from normscope.cli.sources import device_setting
from normscope.files import replacing
from normscope.progress_bar import show_progress

if TYPE_CHECKING:
    import xarray as xr

    from normscope.experiments import Result

_UNFINISHED = "demo-unfinished.sqlite"


@command("demo", "One network under five normalizations: table, report.")
def demo(
    out: opt.Folder = Path("normscope-out"),
    scale: opt.EmbeddedScale = "small",
    seed: opt.FirstSeed = None,
    device: opt.ExperimentDevice = "cpu",
    as_json: opt.Json = False,
) -> None:
    """Show what five normalizations do to one network: learning rate, curvature, theory.

    Trains the same network on the embedded digits without normalization and with four kinds of it,
    and prints one row for each. Writes FOLDER/report.html, which opens in any browser, demo.svg and
    demo.nc. If interrupted, rerun the same command to resume.

    Example: normscope demo --out normscope-out
    """
    from normscope.experiments import EXPERIMENTS
    from normscope.experiments import run as run_experiment
    from normscope.experiments.tour.page import with_record
    from normscope.experiments.tour.tour import seconds_in_store
    from normscope.results import Store

    check_folder(out, "files")
    recipe = EXPERIMENTS["tour"]
    overrides: dict[str, object] = {} if seed is None else {"seed": seed}
    overrides |= device_setting("demo", recipe.defaults, device)
    settings = recipe.settings(scale, overrides)  # an error comes before anything is written
    out.mkdir(parents=True, exist_ok=True)
    kept = out / _UNFINISHED
    with resumable(kept), Store(kept) as store, show_progress("demo") as show:
        earlier = seconds_in_store(store, settings)
        result = run_experiment("tour", scale, store=store, progress=show, **overrides)
    command = f"normscope demo --scale {scale} --seed {settings['seed']}"
    numbers = with_record(result, command, earlier)
    with write_then_print(partial(_write, result, numbers, out)) as files:
        if files:  # the next demo starts from scratch
            for leftover in out.glob(f"{_UNFINISHED}*"):
                leftover.unlink()
        (_print_json if as_json else _print)(result, earlier, files or {})


def _write(result: Result, numbers: xr.Dataset, out: Path) -> dict[str, str]:
    """Write report, figure and numbers atomically and return their paths."""
    from normscope.experiments.tour.page import tour_report
    from normscope.report import write_report

    paths = {
        "report": out / "report.html",
        "figure": out / "demo.svg",
        "numbers": out / "demo.nc",
    }
    with replacing(paths["figure"]) as unfinished:
        result.figure().savefig(unfinished, metadata={"Date": None})
    with replacing(paths["numbers"]) as unfinished:
        numbers.to_netcdf(unfinished, engine="scipy")
    write_report(tour_report(numbers), paths["report"])
    return {what: str(path) for what, path in paths.items()}


def _print_json(result: Result, earlier: float, files: dict[str, str]) -> None:
    from normscope.experiments.tour.summary import findings, headline, summary_rows

    found = result.dataset
    print_json(
        {
            **result.to_dict(),
            "seconds": result.seconds + earlier,
            "seconds_before": earlier,
            "norms": summary_rows(found),
            "findings": [headline(found), *findings(found).values()],
            "files": files,
        }
    )


def _print(result: Result, earlier: float, files: dict[str, str]) -> None:
    from normscope.experiments.tour import summary
    from normscope.experiments.tour.page import earlier_note

    found = result.dataset
    seeds = found.sizes["seed"]
    several = f", medians over {seeds} seeds" if seeds > 1 else ""
    _print_wrapped(summary.headline(found))
    typer.echo()
    print_table(f"One net on {found.attrs['data']}{several}", summary.summary_table(found))
    _print_wrapped(summary.LEGEND)
    typer.echo()
    for sentence in summary.findings(found).values():
        _print_wrapped(sentence, "- ")
    from normscope.results import VERDICTS

    judged = [claim.verdict for claim in result.claims]
    counts = ", ".join(f"{judged.count(each)} {each}" for each in VERDICTS if each in judged)
    note = earlier_note(earlier)
    duration = f"{result.seconds + earlier:.0f} s{', ' if note else ''}{note}"
    typer.echo(f"\nThe papers' claims: {counts}. {duration}.")
    for claim in result.claims:
        if claim.holds is False:
            _print_wrapped(f"not reproduced: {claim.text} ({claim.source})", "- ")
    _print_wrapped(summary.SAME_AGAIN)
    if files:
        typer.echo(
            f"Report: {files['report']}   Figure: {files['figure']}   Data: {files['numbers']}"
        )


def _print_wrapped(text: str, bullet: str = "") -> None:
    """Print a paragraph of at most 100 columns, 80 when piped, behind a bullet."""
    width = min(shown_width(), 100)
    indent = " " * len(bullet)
    typer.echo(textwrap.fill(text, width, initial_indent=bullet, subsequent_indent=indent))
