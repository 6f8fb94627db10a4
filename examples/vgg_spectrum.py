"""The spectrum of a VGG's Hessian on CIFAR-10, with and without BatchNorm, at initialization.

    NORMSCOPE_DATA=folder python examples/vgg_spectrum.py [--out docs/images/vgg_spectrum.svg]

Quarter width, train-mode statistics, one batch of 128 images. BatchNorm does not only move the
largest eigenvalue: the whole spectrum changes. Takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import normscope as ns
from normscope.cli.batches import choose_batches
from normscope.curvature.spectrum import spectrum
from normscope.files import replacing
from normscope.plots.spectrum import spectrum as draw
from normscope.plots.style import colour_of, new_figure

LINEAR_THRESHOLD = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images/vgg_spectrum.svg"))
    parser.add_argument("--kind", default="hessian", choices=["fisher", "ggn", "hessian"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--probes", type=int, default=3)
    parser.add_argument("--lanczos-steps", type=int, default=40)
    options = parser.parse_args()
    data = choose_batches(tuple(ns.data.load("cifar10").train), options.batch_size, 1)
    figure = new_figure(width=7.0, height=4.0)
    axes = figure.subplots()
    for norm in ("none", "batch"):
        found = spectrum(
            ns.models.build("vgg", norm=norm, width=0.25),
            "cross_entropy",
            data,
            kind=options.kind,
            probes=options.probes,
            lanczos_steps=options.lanczos_steps,
            linear_threshold=LINEAR_THRESHOLD,
        )
        label = "without normalization" if norm == "none" else "with BatchNorm"
        draw(found, axes, label=label, colour=colour_of(norm))
        largest = float(found["nodes"].max())
        print(f"{label}: largest {largest:.4g}, {found.attrs['seconds']:.0f} s", flush=True)
    name = {"fisher": "Fisher matrix", "ggn": "Gauss-Newton matrix", "hessian": "Hessian"}
    axes.set_title(f"{name[options.kind]} of a VGG at initialization, CIFAR-10")
    with replacing(options.out) as unfinished:
        figure.savefig(unfinished)
    print(f"Figure: {options.out}")


if __name__ == "__main__":
    main()
