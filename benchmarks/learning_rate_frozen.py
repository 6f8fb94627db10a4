"""Learning-rate limits of networks with frozen norm layers, over those of a slow search.

    python benchmarks/learning_rate_frozen.py [--cases NAME ...] [--mode as_is]

Each network has some modules in eval mode, as in fine-tuning; some also have parameters that are
not trained. The truth is the search of ``learning_rate_truth.py``: plain torch loops on copies with
the same flags. Both see the embedded digits in the same order, since another order alone changes a
limit by up to a half.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from learning_rate_truth import onsets_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns

BATCH_SIZE = 64
Loss = Callable[[Tensor, Tensor], Tensor]
OPTIONS = {
    "fully_connected": {"width": 64, "depth": 4},
    "conv_net": {"channels": (8, 16), "padding": 1},
}


@dataclass(frozen=True)
class Frozen:
    """One network with modules in eval mode.

    Args:
        norm: kind of normalization, by the registered name.
        model: registered model.
        held: which norm layers are in eval mode: by their index.
        variance: by which the running variances are multiplied after they are measured.
        untrained: first parts of the names of the parameters that are not trained.
        momentum: of SGD.
        loss: registered name.
    """

    held: slice
    norm: str = "batch"
    model: str = "fully_connected"
    variance: float = 1.0
    untrained: tuple[str, ...] = ()
    momentum: float = 0.0
    loss: str = "cross_entropy"

    def batches(self) -> DataLoader[tuple[Tensor, ...]]:
        """Images and labels, in a fixed order."""
        return DataLoader(TensorDataset(*ns.data.load("digits").train), BATCH_SIZE, drop_last=True)

    def make(self) -> nn.Module:
        """The network, its running statistics measured on the data, with its flags set."""
        options = OPTIONS[self.model]
        model = ns.models.build(self.model, self.norm, input_shape=(1, 8, 8), **options)
        ns.layers.population_statistics(model, self.batches())
        layers = [m for m in model.modules() if getattr(m, "running_mean", None) is not None]
        for layer in layers[self.held]:
            layer.eval()
            for name in ("running_var", "running_scale"):
                if hasattr(layer, name):
                    getattr(layer, name).mul_(self.variance)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(self.untrained or ("no name",)))
        return model


BACKBONE = ("features.0", "features.1", "features.3", "features.4")
ALL, FIRST, LAST = slice(None), slice(0, 1), slice(-1, None)
CASES = {
    "all": Frozen(ALL),
    "all, variance / 10": Frozen(ALL, variance=0.1),
    "all, variance / 100": Frozen(ALL, variance=0.01),
    "all, variance x 10": Frozen(ALL, variance=10.0),
    "first": Frozen(FIRST),
    "first, variance / 100": Frozen(FIRST, variance=0.01),
    "last": Frozen(LAST),
    "last, variance / 10": Frozen(LAST, variance=0.1),
    "first half": Frozen(slice(0, 2)),
    "first half, momentum": Frozen(slice(0, 2), momentum=0.9),
    "all, squared error": Frozen(ALL, loss="squared_error"),
    "last, squared error": Frozen(LAST, loss="squared_error"),
    "noisy, all": Frozen(ALL, norm="noisy"),
    "l2, first half": Frozen(slice(0, 2), norm="l2"),
    "convolutions, all": Frozen(ALL, model="conv_net"),
    "convolutions, first": Frozen(FIRST, model="conv_net"),
    "backbone": Frozen(slice(0, 2), untrained=BACKBONE),
}


def run_of(case: Frozen, model: nn.Module) -> Callable[..., Iterator[float]]:
    """Plain training of a copy, which has the model's flags."""
    loss_of: Loss = ns.problem.LOSSES[case.loss]

    def run(rate_at: Callable[[int], float], order: int, steps: int) -> Iterator[float]:
        twin = copy.deepcopy(model)
        trained = [p for p in twin.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=1.0, momentum=case.momentum)
        batches = itertools.cycle(case.batches())
        for step, (inputs, targets) in zip(range(steps), batches, strict=False):
            loss = loss_of(twin(inputs), targets)
            yield loss.item()
            optimizer.param_groups[0]["lr"] = rate_at(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def main() -> None:
    """Print predicted, verified and curvature bound over the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--mode", default="as_is")
    given = parser.parse_args()
    for name in given.cases:
        case = CASES[name]
        model = case.make()
        limit = 3.0 if case.loss == "squared_error" else 1.5
        truth = min(onsets_of(run_of(case, model), limit, orders=1))
        options = {"momentum": case.momentum, "mode": given.mode}
        options |= {"effort": "thorough", "objective": "half_limit"}
        advice = ns.max_learning_rate(model, case.loss, case.batches(), **options)
        found = {"predicted": advice.predicted, "limit": advice.limit, "bound": advice.bound}
        ratios = ", ".join(f"{each} {rate / truth:.3g}" for each, rate in found.items())
        print(f"{name:26} true {truth:.3g}; over the truth: {ratios}", flush=True)


if __name__ == "__main__":
    main()
