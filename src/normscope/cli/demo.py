"""``normscope demo``: everything normscope measures, on embedded data, and a report of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from normscope.cli.options import EmbeddedScale, ExperimentDevice, FirstSeed, Folder, Json

if TYPE_CHECKING:
    from normscope.experiments import Result

_UNFINISHED = "demo-unfinished.sqlite"


def demo(
    out: Folder = Path("normscope-out"),
    scale: EmbeddedScale = "small",
    seed: FirstSeed = None,
    device: ExperimentDevice = "cpu",
    as_json: Json = False,
) -> None:
    """What five normalizations do to one net: learning rate, landscape, curvature, theory.

    Trains the same net on the embedded digits without normalization and with four kinds of it,
    prints one row for each, and writes FOLDER/report.html, which opens in any browser, demo.svg
    and demo.nc. Cut off, it goes on with the same command where it was.

    Example: normscope demo --out normscope-out
    """
    from normscope.cli.devices import device_setting
    from normscope.cli.output import progress, resumable
    from normscope.experiments import EXPERIMENTS
    from normscope.experiments import run as run_experiment
    from normscope.experiments.tour.tour import progress_steps
    from normscope.results import Store

    recipe = EXPERIMENTS["tour"]
    overrides: dict[str, object] = {} if seed is None else {"seed": seed}
    overrides |= device_setting("demo", recipe.defaults(), device)
    settings = recipe.settings(scale, overrides)  # refuse before anything is written
    out.mkdir(parents=True, exist_ok=True)
    kept = out / _UNFINISHED
    with (
        resumable(kept),
        Store(kept) as store,
        progress("demo", progress_steps(settings)) as begin,
    ):
        result = run_experiment("tour", scale, store=store, progress=begin, **overrides)
    files = _write(result, out, f"normscope demo --scale {scale} --seed {settings['seed']}")
    for leftover in out.glob(f"{_UNFINISHED}*"):  # the work is done: the next demo begins anew
        leftover.unlink()
    _print(result, files, as_json)


def _write(result: Result, out: Path, command: str) -> dict[str, str]:
    """Write report, figure and numbers, each whole or not at all, and say where they are."""
    from normscope.experiments.tour.page import tour_report
    from normscope.files import replacing
    from normscope.report import write_report

    paths = {
        "report": out / "report.html",
        "figure": out / "demo.svg",
        "numbers": out / "demo.nc",
    }
    with replacing(paths["figure"]) as unfinished:
        result.figure().savefig(unfinished, metadata={"Date": None})
    with replacing(paths["numbers"]) as unfinished:
        result.dataset.to_netcdf(unfinished, engine="scipy")
    write_report(tour_report(result, command), paths["report"])
    return {what: str(path) for what, path in paths.items()}


def _print(result: Result, files: dict[str, str], as_json: bool) -> None:
    from normscope.cli.output import print_json, print_table
    from normscope.experiments.tour.summary import LEGEND, findings, summary_rows, summary_table

    found = findings(result.dataset)
    if as_json:
        rows = summary_rows(result.dataset)
        print_json({**result.to_dict(), "norms": rows, "findings": found, "files": files})
        return
    seeds = result.dataset.sizes["seed"]
    several = f", medians over {seeds} seeds" if seeds > 1 else ""
    title = f"One net on {result.dataset.attrs['data']}{several}"
    print_table(title, summary_table(result.dataset))
    _print_wrapped(LEGEND, "")
    typer.echo()
    for sentence in found:
        _print_wrapped(sentence, "- ")
    judged = [claim.holds for claim in result.claims]
    typer.echo(
        f"\nThe papers' claims: {judged.count(True)} reproduced, {judged.count(False)} not "
        f"reproduced, {judged.count(None)} undecided. {result.seconds:.0f} s."
    )
    for claim in result.claims:
        if claim.holds is False:
            _print_wrapped(f"not reproduced: {claim.text} ({claim.source})", "- ")
    typer.echo(f"Report: {files['report']}   Figure: {files['figure']}   Data: {files['numbers']}")


def _print_wrapped(text: str, sign: str) -> None:
    """Print a text wrapped to the width of the terminal, behind a sign."""
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    indent = " " * len(sign)
    typer.echo(textwrap.fill(text, width, initial_indent=sign, subsequent_indent=indent))
