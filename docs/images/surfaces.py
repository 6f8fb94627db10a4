"""Draw the loss surfaces of a trained network without BatchNorm, and with it in three modes.

python docs/images/surfaces.py    # writes surfaces.svg; a minute on one core

The same as a page to turn and slice goes to surfaces.html of the current folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import xarray as xr
from matplotlib import rc_context

import normscope as ns
from normscope.plots.surface import surfaces
from normscope.report import Report, dataset_section, picture_of, write_report

OUT = Path(__file__).with_suffix(".svg")
CASES = {
    "no normalization": ("none", "train"),
    "BatchNorm, train mode": ("batch", "train"),
    "BatchNorm, population": ("batch", "population"),
    "BatchNorm, eval mode": ("batch", "eval"),
}
CAPTION = "The loss on one scale of colours. Cross: the weights. Circle: the lowest point."


def describe(found: Mapping[str, xr.Dataset]) -> str:
    """Return what the surfaces show, in a sentence."""
    none, train, population, running = (float(x["roughness"].max()) for x in found.values())
    return (
        f"Roughness (largest second difference): {none:.2g} without normalization, {train:.2g} "
        f"with BatchNorm in train mode, {population:.2g} with population statistics recomputed at "
        f"every point, {running:.2g} for the same BatchNorm network in eval mode, whose running "
        "statistics fit only the weights at the centre."
    )


def measure(norm: str, mode: str) -> xr.Dataset:
    """Return the surface of a network trained for 120 steps on the digits."""
    data = ns.data.load("digits").train
    model = ns.models.build("fully_connected", norm=norm, input_shape=(1, 8, 8), width=30)
    ns.fit(ns.Problem(model, "cross_entropy", data), ns.sgd(0.03), steps=120, batch_size=64)
    batch = tuple(part[:512] for part in data)
    found = ns.landscape.surface(model, "cross_entropy", batch, mode=mode, points=21)
    print(f"{norm}, {mode} mode: {found}\n")
    return found.dataset


if __name__ == "__main__":
    found = {title: measure(*case) for title, case in CASES.items()}
    with rc_context({"svg.hashsalt": "normscope"}):
        surfaces(found).savefig(OUT, metadata={"Date": None})
    words = describe(found)
    overview = picture_of(surfaces(found), CAPTION)
    sections = [dataset_section(each, title, stem=title) for title, each in found.items()]
    title = "Loss surfaces with and without BatchNorm"
    report = Report(title, [words], sections, overview=overview)
    write_report(report, Path("surfaces.html"))
