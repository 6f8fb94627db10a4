"""``normscope demo``: the main job on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import xarray as xr


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the figure and the numbers.")
    ] = Path("normscope-out"),
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="First of the three seeds.")] = 0,
    steps: Annotated[int, typer.Option(min=2, help="Training steps of each run.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train one net on the embedded digits with and without BatchNorm at three learning rates.

    Prints a table and writes one figure and its data.

    Example: normscope demo --out normscope-out
    """
    from normscope.cli.output import print_json, print_table, progress_over
    from normscope.experiments.first_look import first_look
    from normscope.files import replacing
    from normscope.plots.training_curves import training_curves

    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is told before the work
    norms, rates, seeds = ("none", "batch"), (0.01, 0.1, 1.0), 3
    with progress_over(len(norms) * len(rates) * seeds, "training") as progress:
        results = first_look(norms, rates, seeds, steps=steps, seed=seed, progress=progress)
    with replacing(out / "demo.svg") as unfinished:
        training_curves(results).savefig(unfinished)
    with replacing(out / "demo.nc") as unfinished:
        results.to_netcdf(unfinished, engine="scipy")
    if as_json:
        print_json(_rows(results))
        return
    print_table("The same net with and without BatchNorm, three seeds", _rows(results))
    typer.echo(_summary(results))
    typer.echo(f"Figure: {out / 'demo.svg'}   Data: {out / 'demo.nc'}")


def _rows(results: xr.Dataset) -> list[dict[str, object]]:
    """One row per normalization and learning rate, over the seeds."""
    rows: list[dict[str, object]] = []
    for norm in results["norm"].values:
        for rate in results["learning_rate"].values:
            cell = results.sel(norm=norm, learning_rate=rate)
            diverged = int((cell["outcome"] == "diverged").sum())
            accuracy = cell["test_accuracy"].dropna("seed")
            rows.append(
                {
                    "norm": str(norm),
                    "learning rate": float(rate),
                    "diverged": f"{diverged} of {cell.sizes['seed']}",
                    "test accuracy": float(accuracy.mean()) if accuracy.size else None,
                    "lowest": float(accuracy.min()) if accuracy.size else None,
                    "highest": float(accuracy.max()) if accuracy.size else None,
                }
            )
    return rows


def _summary(results: xr.Dataset) -> str:
    """What was found, in one sentence per normalization."""
    sentences = []
    for norm in results["norm"].values:
        stable = (results["outcome"].sel(norm=norm) != "diverged").all("seed")
        rates = results["learning_rate"].where(stable, drop=True)
        name = "without normalization" if norm == "none" else f"with {norm} normalization"
        limit = f"up to {float(rates.max()):g}" if rates.size else "at none of the rates tried"
        sentences.append(f"{name} every run was stable {limit}")
    return (", ".join(sentences) + ".").capitalize()
