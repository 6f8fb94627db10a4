"""Learning-rate limits of losses other than the calibrated two, over those of a slow search.

    python benchmarks/learning_rate_losses.py [--losses NAME ...] [--networks NAME ...]

The prediction and the threshold of instability were calibrated on the cross-entropy and the squared
error. The truth is the search of ``learning_rate_truth.py`` with the library's threshold: 3 times
the first loss for the squared error, 1.5 times for all others. "useless" is the same search for the
rate from which training does not decrease the loss: the last 20 of 100 losses are on average above
the first, whatever happened between. Data: the embedded digits.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
from collections.abc import Callable, Iterator

import torch
from learning_rate_truth import TOLERANCE, onsets_of
from torch import Tensor, nn
from torch.nn import functional

import normscope as ns

BATCH_SIZE = 128
Loss = Callable[[Tensor, Tensor], Tensor]


def _one_hot(target: Tensor) -> Tensor:
    return functional.one_hot(target, 10).float()


def focal(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with less weight on samples that are fitted well."""
    each = functional.cross_entropy(output, target, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def cosine(output: Tensor, target: Tensor) -> Tensor:
    """One minus the cosine of the angle between output and one-hot target."""
    return 1 - functional.cosine_similarity(output, _one_hot(target)).mean()


def hinge(output: Tensor, target: Tensor) -> Tensor:
    """Hinge loss of ten classifiers, one against the rest."""
    return functional.relu(1 - (2 * _one_hot(target) - 1) * output).mean()


def kl_divergence(output: Tensor, target: Tensor) -> Tensor:
    """KL divergence from smoothed labels."""
    smooth = 0.9 * _one_hot(target) + 0.01
    return functional.kl_div(output.log_softmax(1), smooth, reduction="batchmean")


def handwritten_squares(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, unrecognized."""
    return 0.5 * (output - _one_hot(target)).square().sum(1).mean()


def handwritten_sum(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy summed over the samples, unrecognized."""
    return -output.log_softmax(1).gather(1, target.unsqueeze(1)).sum()


# the loss, and what makes its targets from labels
LOSSES: dict[str, tuple[Loss, Callable[[Tensor], Tensor]]] = {
    "cross_entropy": (nn.CrossEntropyLoss(), torch.clone),
    "cross_entropy sum": (nn.CrossEntropyLoss(reduction="sum"), torch.clone),
    "cross_entropy sum, own": (handwritten_sum, torch.clone),
    "squares": (nn.MSELoss(), _one_hot),
    "squares sum": (nn.MSELoss(reduction="sum"), _one_hot),
    "squares, own": (handwritten_squares, torch.clone),
    "bce": (nn.BCEWithLogitsLoss(), _one_hot),
    "bce sum": (nn.BCEWithLogitsLoss(reduction="sum"), _one_hot),
    "bce of sigmoid": (nn.BCELoss(), _one_hot),
    "nll": (nn.NLLLoss(), torch.clone),
    "nll sum": (nn.NLLLoss(reduction="sum"), torch.clone),
    "l1": (nn.L1Loss(), _one_hot),
    "smooth l1": (nn.SmoothL1Loss(), _one_hot),
    "huber 0.1": (nn.HuberLoss(delta=0.1), _one_hot),
    "margin": (nn.MultiMarginLoss(), torch.clone),
    "hinge": (hinge, torch.clone),
    "kl": (kl_divergence, torch.clone),
    "focal": (focal, torch.clone),
    "cosine": (cosine, torch.clone),
}
NETWORKS = {
    "plain": ("fully_connected", "none", {"width": 64, "depth": 4}),
    "batch": ("fully_connected", "batch", {"width": 64, "depth": 4}),
    "layer": ("fully_connected", "layer", {"width": 64, "depth": 4}),
    "conv": ("conv_net", "batch", {"channels": (8, 16), "padding": 1}),
}
LAST = {"bce of sigmoid": nn.Sigmoid(), "nll": nn.LogSoftmax(1), "nll sum": nn.LogSoftmax(1)}


def network(name: str, loss: str) -> nn.Module:
    """The network, with the last function that a loss needs."""
    kind, norm, options = NETWORKS[name]
    model = ns.models.build(kind, norm, input_shape=(1, 8, 8), **options)
    return nn.Sequential(model, LAST[loss]) if loss in LAST else model


def run_of(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Callable[..., Iterator[float]]:
    """Plain training of a copy."""

    def run(rate_at: Callable[[int], float], order: int, steps: int) -> Iterator[float]:
        twin = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(twin.parameters(), lr=1.0)
        permutation = torch.randperm(len(x), generator=torch.Generator().manual_seed(order + 7))
        for step in range(steps):
            start = step * BATCH_SIZE % (len(x) - BATCH_SIZE + 1)
            chosen = permutation[start : start + BATCH_SIZE]
            value = loss(twin(x[chosen]), y[chosen])
            yield value.item()
            optimizer.param_groups[0]["lr"] = rate_at(step)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    return run


def useless_from(run: Callable[..., Iterator[float]], near: float) -> float:
    """The rate near another one from which the last losses are on average above the first."""

    def is_useless(rate: float) -> bool:
        values = []
        for value in run(lambda step: rate, 0, 100):
            values.append(value)
            if not math.isfinite(value):
                return True
        return not statistics.fmean(values[-20:]) < values[0]

    low = high = near
    while is_useless(low) and low > 1e-6 * near:
        low, high = low / 1.5, low
    while not is_useless(high) and high < 1e6 * near:
        low, high = high, high * 1.5
    while high / low > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_useless(middle) else (middle, high)
    return high


def main() -> None:
    """Print predicted, verified and curvature bound over the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", nargs="*", default=list(LOSSES))
    parser.add_argument("--networks", nargs="*", default=["plain", "batch", "conv"])
    given = parser.parse_args()
    x, labels = ns.data.load("digits").train
    for name in given.losses:
        loss, targets = LOSSES[name]
        y = targets(labels)
        for net in given.networks:
            model = network(net, name)
            run = run_of(model, loss, x, y)
            truth = statistics.median(onsets_of(run, 3.0 if isinstance(loss, nn.MSELoss) else 1.5))
            useless = useless_from(run, min(truth, 1e6))
            try:
                options = {"effort": "thorough", "objective": "half_limit"}
                advice = ns.max_learning_rate(model, loss, (x, y), batch_size=BATCH_SIZE, **options)
            except ns.errors.NormscopeError as error:
                print(f"{name:22} {net:6} true {truth:9.3g}; refused: {error}", flush=True)
                continue
            found = {"predicted": advice.predicted, "limit": advice.limit, "bound": advice.bound}
            ratios = ", ".join(f"{each} {rate / truth:.3g}" for each, rate in found.items())
            print(
                f"{name:22} {net:6} true {truth:9.3g} useless {useless / truth:6.3g}; over the "
                f"truth: {ratios}; {advice.prediction.reason}",
                flush=True,
            )


if __name__ == "__main__":
    main()
