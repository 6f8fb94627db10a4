"""One evaluation of the model: at fixed parameters, in a fixed mode, with fixed randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.errors import ShapeError, StateError
from normscope.problem.batch import Batch, copied, sample_count
from normscope.problem.diagnose import check_finite, explained
from normscope.problem.isolation import (
    fixed_randomness,
    generators_of_data,
    generators_of_model,
    substituted,
    undisturbed,
)
from normscope.problem.loss import modules_of_loss
from normscope.problem.modes import in_mode
from normscope.problem.parameters import ParameterLayout
from normscope.problem.problem import Problem

__all__ = ["Evaluation", "Evaluator", "prefers_channels_last", "takes_either_order"]


@dataclass(frozen=True)
class Evaluation:
    """The model's values on one batch, with the graph behind them.

    Args:
        leaves: the parameters differentiated by, in the layout's order.
        output: the model's output, samples first; None with a `whole_loss`.
        loss: the scalar loss.
        samples: number of samples in the batch.
    """

    leaves: tuple[Tensor, ...]
    output: Tensor | None
    loss: Tensor
    samples: int


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a problem's model again and again, always the same function.

    It keeps copies of the parameters and buffers of the moment it was made: training the model
    further does not move it, and nothing it does reaches the model.

    Args:
        problem: model, loss and data.
        layout: the parameters to differentiate by.
        mode: "train", "frozen" or "eval".
        seed: of dropout, noise and the data's order.
    """

    problem: Problem
    layout: ParameterLayout
    mode: str
    seed: int
    point: dict[str, Tensor] = field(init=False, repr=False)
    _losses: dict[int, float] = field(init=False, repr=False, default_factory=dict)
    #: whether the model takes images of a shape in either order of memory, once it was tried
    _either_order: dict[torch.Size, bool] = field(init=False, repr=False, default_factory=dict)
    _modules_of_loss: list[nn.Module] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        model = self.problem.model
        own = [*model.named_parameters(), *model.named_buffers()]
        with torch.inference_mode(False):
            point = {name: tensor.detach().clone() for name, tensor in own}
        object.__setattr__(self, "point", point)
        found = modules_of_loss(self.problem.loss, model)
        object.__setattr__(self, "_modules_of_loss", found)

    def on(self, problem: Problem, point: Mapping[str, Tensor] | None = None) -> Evaluator:
        """The same model on other data, its parameters as here or at another point; not copied."""
        other = Evaluator.__new__(Evaluator)
        point = {**self.point, **(point or {})}
        values = {**self.__dict__, "problem": problem, "point": point, "_losses": {}}
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """Every batch with its number; a shuffling DataLoader gives the same order each time.

        Yields:
            Pairs (number, batch).
        """
        if self.problem.is_one_batch or isinstance(self.problem.data, list):
            yield from enumerate(self.problem.batches())
            return
        generators = generators_of_data(self.problem.data)
        with fixed_randomness(self.seed, self.problem.device, generators):
            yield from enumerate(self.problem.batches())

    @contextmanager
    def scene(
        self, leaves: tuple[Tensor, ...], number: int = 0, twice: bool = True
    ) -> Iterator[None]:
        """The model set up for one batch: to be open while it runs forward or backward.

        Args:
            leaves: the parameters differentiated by.
            number: the batch's, from which its random draws follow.
            twice: whether gradients are differentiated again; if not, first ones are faster.

        Yields:
            Nothing.
        """
        model = self.problem.model
        # buffers are copied for each scene: a forward pass in train mode advances them
        trained = dict(zip(self.layout.names, leaves, strict=True))
        copies = {name: self.point[name].clone() for name, _ in model.named_buffers()}
        with (
            undisturbed(model, *self._modules_of_loss),
            self.randomness(number),
            substituted(model, self.point | copies | trained),
            in_mode(model, self.mode, twice),
            # the fused attention kernels have no second derivative
            sdpa_kernel(SDPBackend.MATH) if twice else nullcontext(),
            torch.inference_mode(False),
            torch.enable_grad(),
            explained(),
        ):
            yield

    def randomness(self, number: int = 0) -> AbstractContextManager[None]:
        """Every random draw of the model on one batch, fixed; afterwards all states as before."""
        generators = generators_of_model(self.problem.model)
        return fixed_randomness(self.seed + number, self.problem.device, generators)

    def __call__(self, batch: Batch, number: int = 0) -> Evaluation:
        """Output and loss on one batch.

        Args:
            batch: as `batches` gives it.
            number: its number.

        Returns:
            The values, with their graph.

        Raises:
            StateError: if a value is not finite, or the same batch gave another loss before.
        """
        if self._rearranges(batch):
            inputs, targets = batch
            batch = inputs.contiguous(memory_format=torch.channels_last), targets
        leaves = self.leaves()
        with self.scene(leaves, number):
            output, loss = self._forward(batch)
        self._check_loss(loss, batch, number)
        return Evaluation(leaves, output, loss, sample_count(batch))

    def _rearranges(self, batch: Batch) -> bool:
        """Whether images are handed over as convolutions like them: if it makes no difference."""
        if not self.problem.has_outputs or not prefers_channels_last(batch[0]):
            return False
        if not any(isinstance(module, nn.Conv2d) for module in self.problem.model.modules()):
            return False
        shape = batch[0].shape[1:]
        if shape not in self._either_order:
            trial = takes_either_order(lambda few: self._tried(few, batch[1]), batch[0])
            self._either_order[shape] = trial
        return self._either_order[shape]

    def _tried(self, few: Tensor, targets: Tensor) -> list[Tensor]:
        """The outputs of a few samples, and the gradient of their squares, as one vector.

        In one vector, since what a norm layer takes out (a bias before it) is rounding alone.
        """
        leaves = self.leaves()
        with self.scene(leaves):
            output = self.problem.output_on((few.clone(), targets[: len(few)]))
            squares = output.square().sum()
            gradients = torch.autograd.grad(squares, leaves, materialize_grads=True)
        return [output.detach(), self.layout.join(gradients)]

    def check(self, output: Tensor, batch: Batch, number: int = 0) -> None:
        """Refuse an output computed otherwise as `__call__` refuses that of the model itself.

        Args:
            output: of the model on that batch.
            batch: as `batches` gives it.
            number: its number.
        """
        with self.scene(self.leaves(), number), torch.no_grad():
            loss = self._loss(output.clone(), batch)  # which a loss may overwrite
        self._check_loss(loss, batch, number)

    def leaves(self) -> tuple[Tensor, ...]:
        """The parameters to differentiate by, as the beginnings of a new graph."""
        with torch.inference_mode(False):
            return tuple(self.point[name].detach().requires_grad_() for name in self.layout.names)

    def _forward(self, batch: Batch) -> tuple[Tensor | None, Tensor]:
        if not self.problem.has_outputs:
            return None, self.problem.loss_on(copied(batch))  # a loss may overwrite it
        inputs, targets = batch
        output = self.problem.output_on((inputs.clone(), targets))  # a model may overwrite it
        return output, self._loss(output, batch)

    def _loss(self, output: Tensor, batch: Batch) -> Tensor:
        inputs, targets = batch
        check_finite(output, "the model's output", batch)
        if output.dim() == 0 or len(output) != len(inputs):
            raise ShapeError(
                f"the model's output needs one row per sample, {len(inputs)}, got the shape "
                f"{tuple(output.shape)}."
            )
        return self.problem.loss_of(output, targets)

    def _check_loss(self, loss: Tensor, batch: Batch, number: int) -> None:
        check_finite(loss, "the loss", batch)
        self._check_repeatable(number, loss.item())

    def _check_repeatable(self, number: int, loss: float) -> None:
        """Products on a function that changes between them would mix several matrices."""
        first = self._losses.setdefault(number, loss)
        tolerance = torch.finfo(self.layout.dtype).eps ** 0.5
        if abs(loss - first) > tolerance * max(abs(first), 1.0):
            raise StateError(
                f"batch {number} has a loss of {loss:.6g}, and had {first:.6g} before: data and "
                "model must give the same values each time; give a list of batches, or make the "
                "DataLoader's augmentation follow torch's random numbers."
            )


def prefers_channels_last(inputs: Tensor) -> bool:
    """Whether convolutions of such images are faster with channels as neighbours: oneDNN's are.

    Args:
        inputs: of a convolution, or of a network that begins with one.

    Returns:
        True for single-precision images on a CPU with oneDNN.
    """
    library: Any = torch.backends.mkldnn
    images = inputs.dim() == 4 and inputs.dtype == torch.float32
    return images and inputs.device.type == "cpu" and bool(library.is_available())


_FEW = 4  # samples on which the two orders are compared
_TOLERANCE = 1e-4  # of the largest output; rounding is amplified by some layers


def takes_either_order(outputs_of: Callable[[Tensor], list[Tensor]], inputs: Tensor) -> bool:
    """Whether a network gives the same outputs in either order of memory, on a few samples.

    Some look at their memory: ``view`` refuses it, ``as_strided`` reads other values, and dropout
    draws in the order of memory.

    Args:
        outputs_of: from images to what is compared, the same function at each call.
        inputs: the images.

    Returns:
        False also if it refuses one of them, for whatever reason: the reason will show again.

    >>> images = torch.arange(16.0).view(2, 2, 2, 2)
    >>> takes_either_order(lambda x: [x.flatten(1)], images)
    True
    >>> takes_either_order(lambda x: [x.as_strided((2, 8), (8, 1))], images)
    False
    """
    few = inputs[:_FEW]
    orders = torch.contiguous_format, torch.channels_last
    try:
        given, rearranged = (outputs_of(few.contiguous(memory_format=order)) for order in orders)
        return all(_are_close(*pair) for pair in zip(given, rearranged, strict=True))
    except Exception:  # a model may raise anything
        return False


def _are_close(one: Tensor, other: Tensor) -> bool:
    bound = _TOLERANCE * one.abs().max()
    return one.shape == other.shape and bool(((one - other).abs() <= bound).all())
