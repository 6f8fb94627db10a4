"""What the levels in docs/results/cohen2021 depend on: estimator, oscillation, length of training.

    python benchmarks/edge_of_stability.py descent --rate 0.04 --steps 650 --every 50
    python benchmarks/edge_of_stability.py batches --rate 0.025 --steps 52000 --every 2000

``descent``: full-batch gradient descent; the sharpness over 2 / rate at the iterates, and midway
between successive ones. ``batches``: batches of 16 without momentum; the mean of g'Hg / g'g over
100 batches and the ratio of the means, over 2 / rate. Both train the network fc-tanh of
`normscope.experiments.cohen2021` on 5000 images of CIFAR-10, and print a line per measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normscope.curvature import top_eigenvalue
from normscope.data import load
from normscope.models import build
from normscope.problem import squared_error

SAMPLES, BATCH, BATCHES = 5000, 16, 100


def main() -> None:
    """Parse the options, train, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("descent", "batches"))
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="cifar10")
    options = parser.parse_args()
    measured = descent if options.kind == "descent" else batches
    for step, values in measured(options):
        words = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"step {step}: {words}", flush=True)


def network(options: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """Return fc-tanh with its inputs and targets."""
    x, y = (torch.as_tensor(each[:SAMPLES]) for each in load(options.data).train)
    model = build(
        *("fully_connected", "none", options.seed),
        input_shape=tuple(x.shape[1:]),
        depth=3,
        width=200,
        activation="tanh",
        sigma_w2=1 / 3,
        sigma_b2=0.0,
    )
    return model, x, y


def descent(options: argparse.Namespace) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield loss and sharpness of full-batch gradient descent, at iterates and between them."""
    model, x, y = network(options)
    parameters, vectors = list(model.parameters()), None
    for step in range(options.steps + 1):
        loss = squared_error(model(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        if step % options.every == 0:
            values = {"loss": float(loss)}
            for name, share in (("at the iterate", 0.0), ("midway to the next", 0.5)):
                _move(parameters, gradients, -share * options.rate)
                found = top_eigenvalue(
                    *(model, "squared_error", (x, y)),
                    kind="hessian",
                    mode="as_is",
                    tol=3e-3,
                    max_products=60,
                    start=vectors,
                )
                vectors = found.vectors
                values[name] = found.value * options.rate / 2
                _move(parameters, gradients, share * options.rate)
            yield step, values
        _move(parameters, gradients, -options.rate)


@torch.no_grad()
def _move(parameters: list[Tensor], gradients: tuple[Tensor, ...], by: float) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter += by * gradient


def batches(options: argparse.Namespace) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield loss and batch sharpness by two estimators, while batches of 16 are trained on."""
    model, x, y = network(options)
    optimizer = torch.optim.SGD(model.parameters(), options.rate)
    order = torch.Generator().manual_seed(options.seed)
    drawn = torch.Generator().manual_seed(options.seed + 1000)
    for step in range(options.steps + 1):
        if step % options.every == 0:
            chosen = torch.randint(len(x), (BATCHES, BATCH), generator=drawn)
            pairs = torch.tensor([_curvature(model, x[each], y[each]) for each in chosen])
            with torch.no_grad():
                loss = float(squared_error(model(x), y))
            ratios = pairs[:, 0] / pairs[:, 1]
            mean, ratio = ratios.mean(), pairs[:, 0].mean() / pairs[:, 1].mean()
            half = options.rate / 2
            error = half * float(ratios.std()) / BATCHES**0.5
            values = {"mean of ratios": half * float(mean), "standard error": error}
            yield step, {"loss": loss, **values, "ratio of means": half * float(ratio)}
        each = torch.randint(len(x), (BATCH,), generator=order)
        optimizer.zero_grad()
        squared_error(model(x[each]), y[each]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _curvature(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return g'Hg and g'g of one batch."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(squared_error(model(x), y), parameters, create_graph=True)
    fixed = [each.detach() for each in gradients]
    squared = sum(float((each * each).sum()) for each in fixed)
    along = sum((g * d).sum() for g, d in zip(gradients, fixed, strict=True))
    products = torch.autograd.grad(along, parameters)
    return sum(float((p * d).sum()) for p, d in zip(products, fixed, strict=True)), squared


if __name__ == "__main__":
    main()
