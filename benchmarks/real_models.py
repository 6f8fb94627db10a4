"""Curvature of real networks against plain autograd in float64, and the time of `check_layer`.

    pip install 'normscope[zoo]'    # torchvision and transformers
    python benchmarks/real_models.py [ROW ...] [--width 64] [--images 16] [--threads 1]

Rows:

- resnet18: Hessian in train mode of a CIFAR ResNet-18, in float32 and in float64. The reference is
  the Rayleigh quotient of the eigenvector by double backpropagation in float64; the residual beside
  it bounds its distance from an eigenvalue. CIFAR-10 if NORMSCOPE_DATA has it, else random images.
- mobilenet: GGN, Fisher matrix and Hessian of torchvision's MobileNetV3 (half width, 48 x 48),
  whose hardswish has no second derivative in torch. The reference is scipy's eigsh with products in
  float64.
- gpt2: GGN of transformers' GPT-2 (2 blocks, width 16). The reference is the dense matrix, from the
  explicit Jacobian and the explicit Hessian of the loss in the logits.
- check_layer: two units of each of the 59 norm layers of torchvision's GoogLeNet, CPU seconds.

Each row prints the value, its reference and the relative difference.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from networks import ResNet18
from torch import Tensor, nn

import normscope as ns

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.zoo.packages import PACKAGES
from tests.zoo.reference import Reference

TOLERANCE = 1e-4


def show(row: str, value: float, reference: float, more: str = "") -> None:
    """Print one comparison."""
    difference = abs(value - reference) / abs(reference)
    print(f"{row:44s} {value:12.6g} {reference:12.6g} {difference:10.1e}  {more}", flush=True)


def images(count: int) -> tuple[str, tuple[Tensor, Tensor]]:
    """Return standardized images of CIFAR-10, or random ones if it is not there."""
    try:
        x, y = ns.data.load("cifar10").train
    except ns.errors.NormscopeError:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(count, 3, 32, 32, generator=draw)
        return "random images", (x, torch.randint(10, (count,), generator=draw))
    return "CIFAR-10", (x[:count], y[:count])


def hessian_product(model: nn.Module, batch: tuple[Tensor, Tensor], vector: Tensor) -> Tensor:
    """Return the Hessian of the cross-entropy times a vector, by double backpropagation."""
    weights = list(model.parameters())
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    gradient = torch.autograd.grad(loss, weights, create_graph=True)
    flat = torch.cat([part.flatten() for part in gradient])
    return torch.cat([p.flatten() for p in torch.autograd.grad(flat @ vector, weights)])


def resnet18(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = ResNet18(options.width)
    source, batch = images(options.images)
    exact, wide = copy.deepcopy(model).double(), (batch[0].double(), batch[1])
    start: Any = None
    for name, net, data in (("float32", model, batch), ("float64", exact, wide)):
        top = ns.curvature.top_eigenvalue(
            net, "cross_entropy", data, kind="hessian", mode="train", tol=TOLERANCE, start=start
        )
        vector = top.vectors[:, 0].double()
        vector /= vector.norm()
        product = hessian_product(exact, wide, vector)
        rayleigh = float(vector @ product)
        residual = float((product - rayleigh * vector).norm()) / abs(rayleigh)
        row = f"ResNet-18 / {options.width}, {source}, Hessian, {name}"
        more = f"residual {residual:.0e}, {top.matvecs:.0f} products, {top.seconds:.0f} s"
        show(row, top.value, rayleigh, more + ("" if top.converged else ", NOT CONVERGED"))
        start = top.vectors.double()


def mobilenet(options: argparse.Namespace) -> None:
    entry = PACKAGES["torchvision mobilenet_v3_small"]
    reference = Reference(entry)
    for kind in ("ggn", "fisher", "hessian"):
        top = ns.curvature.top_eigenvalue(
            entry.build(), entry.loss, entry.batch(), kind=kind, mode="train", tol=TOLERANCE
        )
        show(f"torchvision MobileNetV3, {kind}", top.value, reference.top_eigenvalue(kind))


def gpt2(options: argparse.Namespace) -> None:
    entry = PACKAGES["transformers GPT2LMHeadModel"]
    reference = Reference(entry)
    rows = [torch.autograd.grad(o, reference.leaves, retain_graph=True) for o in reference.outputs]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    products = reference.metric("ggn") @ (jacobian @ jacobian.T)  # the eigenvalues of J' H J
    dense = float(torch.linalg.eigvals(products).real.max())
    for name, model in (("float32", entry.build()), ("float64", entry.build().double())):
        top = ns.curvature.top_eigenvalue(
            model, entry.loss, entry.batch(), kind="ggn", mode="train", tol=TOLERANCE
        )
        show(f"transformers GPT-2, ggn, {name}", top.value, dense)


def check_layer(options: argparse.Namespace) -> None:
    entry = PACKAGES["torchvision googlenet"]
    model, batch = entry.build(), entry.batch()
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    seconds, refuted = {}, 0
    for layer in layers:
        begin = time.process_time()
        found = ns.theorems.check_layer(model, entry.loss, batch, layer=layer, units=[0, 1])
        seconds[layer] = time.process_time() - begin
        refuted += len(found.refuted)
    slowest = max(seconds, key=lambda layer: seconds[layer])
    print(
        f"check_layer, torchvision GoogLeNet, {len(layers)} layers, {entry.samples} images: "
        f"{sum(seconds.values()):.1f} CPU seconds, at most {seconds[slowest]:.2f} ({slowest}); "
        f"{refuted} statements refuted"
    )


ROWS = {f.__name__: f for f in (resnet18, mobilenet, gpt2, check_layer)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], default=[], metavar="ROW")
    parser.add_argument("--width", type=int, default=64, help="of the ResNet-18")
    parser.add_argument("--images", type=int, default=16, help="for the ResNet-18")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':44s} {'value':>12s} {'reference':>12s} {'difference':>10s}")
    for row in options.rows or ROWS:
        ROWS[row](options)


if __name__ == "__main__":
    main()
