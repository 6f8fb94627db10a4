"""Outputs, losses and gradients at fixed parameters, in a fixed mode, with fixed randomness."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import NormscopeError, ShapeError, StateError
from normscope.problem.batch import Batch, copy_batch, has_samples, sample_count
from normscope.problem.error_messages import check_finite, explain_errors
from normscope.problem.isolation import RandomGenerators, copy_tensors, isolated, substitute
from normscope.problem.loss_state import loss_modules
from normscope.problem.modes import in_mode, training_flags
from normscope.problem.outputs import (
    PackedOutput,
    output_tensors,
    pack_output,
    replace_tensors,
)
from normscope.problem.parameters import ParameterLayout
from normscope.problem.problem import Problem
from normscope.problem.recognition import is_cross_entropy, is_squared_error
from normscope.problem.references import (
    first_reached,
    refuse_foreign_parameters,
    refuse_held_parameters,
)
from normscope.problem.twice_differentiable import TwiceDifferentiable
from normscope.problem.wrappers import refuse_sharded

_ORDER_SAMPLES = 4  # on which the two memory orders of images are compared
_ORDER_TOLERANCE = 1e-4  # of the largest output; some layers amplify rounding


@dataclass(frozen=True)
class Evaluation:
    """The model's values on one batch, with their autograd graph.

    Args:
        leaves: the parameters differentiated by, in the layout's order.
        output: the model's output, samples first; a structured one as one tensor; None if a
            `whole_loss` hides it or there is a refusal.
        loss: the scalar loss.
        packed: how a structured output became one tensor.
        refusal: why a structured output has no such tensor, to be raised where it is needed.
    """

    leaves: tuple[Tensor, ...]
    output: Tensor | None
    loss: Tensor
    packed: PackedOutput | None = None
    refusal: NormscopeError | None = None


class Evaluator:
    """Evaluates a problem's model in a given mode, always the same function of the parameters.

    It works on copies of the parameters and buffers taken when it is created, and in mode "as_is"
    with the modules' flags of that moment: training the model further does not change its results,
    and it does not change the model.

    Args:
        problem: model, loss and data.
        layout: the parameters to differentiate by.
        mode: "train", "frozen", "eval" or "as_is".
        seed: of dropout, noise and the data's order.

    Attributes:
        point: all parameters and buffers by name.
        flags: the ``training`` flag of every module by name, as the mode sets it.
        parameters: those of the layout, by name, as the model holds them.
    """

    def __init__(self, problem: Problem, layout: ParameterLayout, mode: str, seed: int) -> None:
        self.problem, self.layout, self.mode, self.seed = problem, layout, mode, seed
        refuse_sharded(problem.model)
        self.flags = training_flags(problem.model, mode)
        self.point = copy_tensors(problem.model)
        self._buffers = [name for name, _ in problem.model.named_buffers()]
        self._loss_modules = loss_modules(problem.loss, problem.model)
        own: dict[str, Tensor] = dict(problem.model.named_parameters())
        self.parameters = {name: own[name] for name in layout.names}
        #: the answers of `direct_parameter` and of `pack_output` on the first batch, once known,
        #: shared with evaluators made by `on`
        self._direct: list[tuple[str | None, NormscopeError | None]] = []
        self._losses: dict[int, float] = {}
        #: names of the checks that the derivatives passed, shared with evaluators made by `on`
        self.verified: set[str] = set()
        self._substitutes = TwiceDifferentiable()
        #: whether the model takes images of a shape in channels_last order
        self._takes_channels_last: dict[torch.Size, bool] = {}

    def on(self, problem: Problem, point: Mapping[str, Tensor] | None = None) -> Evaluator:
        """Return an evaluator of the same model on other data, or at other parameters.

        Args:
            problem: the same model and loss, with other data.
            point: tensors by name that replace those of this evaluator; they are not copied.

        Returns:
            The evaluator.
        """
        other = copy.copy(self)
        other.problem, other.point, other._losses = problem, {**self.point, **(point or {})}, {}
        return other

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield every batch with its number; a shuffling DataLoader gives the same order each time.

        Yields:
            Pairs (number, batch).
        """
        batches = self.problem.batches()
        if not self.problem.is_in_memory:
            # seeded only while a batch is drawn: an iterator that is dropped restores nothing late
            generators = RandomGenerators(self.problem.device, self.problem.data)
            batches = generators.drawn(batches, self.seed)
        yield from enumerate(batches)

    @contextmanager
    def isolated(
        self, leaves: tuple[Tensor, ...], number: int = 0, twice: bool = True
    ) -> Iterator[None]:
        """Set the model up for forward and backward passes on one batch, without side effects.

        Args:
            leaves: the parameters differentiated by.
            number: of the batch; its random draws follow from it.
            twice: whether gradients are differentiated again; if not, first ones are faster.

        Yields:
            Nothing.
        """
        model, tensors = self.problem.model, self._tensors(leaves)
        with (
            isolated(model, *self._loss_modules, tensors=tensors, seed=self.seed + number),
            in_mode(model, self.mode, twice, self.flags),
            self._substitutes if twice and self._may_need_substitutes(number) else nullcontext(),
            torch.inference_mode(False),
            torch.enable_grad(),
            explain_errors(),
        ):
            if twice and self._substitutes.used:
                self._substitutes.enter_in_modules(model)
            yield

    def _may_need_substitutes(self, number: int) -> bool:
        """Return whether operations may be replaced: not if a pass of the batch had none."""
        return self._substitutes.used or number not in self._losses

    def reset(self, leaves: tuple[Tensor, ...]) -> None:
        """Inside `isolated`, continue with other leaves and with fresh copies of the buffers."""
        substitute(self.problem.model, self._tensors(leaves))

    def _tensors(self, leaves: tuple[Tensor, ...]) -> dict[str, Tensor]:
        # buffers are copied each time: a forward pass in train mode updates them
        buffers = {name: self.point[name].clone() for name in self._buffers}
        return self.point | buffers | dict(zip(self.layout.names, leaves, strict=True))

    def leaves(self) -> tuple[Tensor, ...]:
        """Return the parameters to differentiate by, as leaves of a new graph."""
        with torch.inference_mode(False):
            return tuple(self.point[name].detach().requires_grad_() for name in self.layout.names)

    def __call__(
        self,
        batch: Batch,
        number: int = 0,
        differentiates_loss: bool = True,
        leaves: tuple[Tensor, ...] | None = None,
    ) -> Evaluation:
        """Return output and loss on one batch.

        Args:
            batch: as `batches` gives it.
            number: its number.
            differentiates_loss: False if only the output will be differentiated.
            leaves: the parameters to differentiate by; None for those of `leaves`.

        Returns:
            The values, with their graph.

        Raises:
            StateError: if a value is not finite, if the same batch gave another loss before, or if
                what is differentiated uses a parameter other than through the model.
        """
        if self._uses_channels_last(batch):
            batch = batch[0].contiguous(memory_format=torch.channels_last), batch[1]
        leaves = self.leaves() if leaves is None else leaves
        packed, refusal = None, None
        with self.isolated(leaves, number):
            output, loss = self._forward(batch)
            if not isinstance(output, Tensor | None):
                packed, refusal = self._pack(output, loss, batch, leaves)
                output = None if packed is None else packed.tensor
        differentiated = loss if output is None or differentiates_loss else output
        check = f"references of the {'loss' if differentiated is loss else 'output'}"
        if check not in self.verified:
            refuse_held_parameters(output, differentiated, self.parameters)
            refuse_foreign_parameters(output, self.parameters, leaves)
            self.verified.add(check)
        if differentiated is loss or self.problem.counts(batch):
            self._check_loss(loss, batch, number)
        return Evaluation(leaves, output, loss, packed, refusal)

    def check(self, output: Tensor, batch: Batch, number: int = 0) -> None:
        """Check an output that was computed otherwise as `__call__` checks that of the model.

        Args:
            output: of the model on that batch.
            batch: as `batches` gives it.
            number: its number.
        """
        with self.isolated(self.leaves(), number), torch.no_grad():
            loss = self._loss(output.clone(), batch)  # which a loss may overwrite
        if self.problem.counts(batch):
            self._check_loss(loss, batch, number)

    @property
    def loss_is_of_output(self) -> bool:
        """Whether the loss is a function of the model's output and the targets alone."""
        return self.problem.has_outputs and self._direct_use() == (None, None)

    def direct_parameter(self) -> str | None:
        """Return a parameter that the loss uses beside the output, as by a penalty on activations.

        Returns:
            The name of the first; None if there is none, or if a `whole_loss` hides the output.

        Raises:
            StateError: if the loss uses a parameter of the model through a reference of its own.
        """
        return self._direct_use()[0]

    def _direct_use(self) -> tuple[str | None, NormscopeError | None]:
        """Return the direct parameter, and why a structured output cannot be used, of one batch."""
        loss = self.problem.loss
        if not self.problem.has_outputs or is_cross_entropy(loss) or is_squared_error(loss):
            return None, None
        if not self._direct:
            self._direct.append(self._find_direct_use())
        return self._direct[0]

    def _find_direct_use(self) -> tuple[str | None, NormscopeError | None]:
        number, batch = next(self.batches())
        leaves, refusal = self.leaves(), None
        with self.isolated(leaves, number):
            output = self.problem.output_on(copy_batch(batch))
            if not isinstance(output, Tensor):
                loss = self._loss(output, batch)
                _, refusal = self._pack(output, loss, batch, leaves)
            # with its graph: the loss may use activations that hooks or attributes keep
            output = replace_tensors(output, Tensor.detach)
            loss = self._loss(output, batch)
        refuse_held_parameters(None, loss, self.parameters, "loss")
        return first_reached([loss], dict(zip(self.layout.names, leaves, strict=True))), refusal

    def _pack(
        self, output: Any, loss: Tensor, batch: Batch, leaves: tuple[Tensor, ...]
    ) -> tuple[PackedOutput | None, NormscopeError | None]:
        """Return a structured output as one tensor, or the reason why there is none."""
        named = dict(zip(self.layout.names, leaves, strict=True))
        samples = sample_count(batch) if has_samples(batch) else None
        try:
            return pack_output(
                output, loss, lambda other: self._loss(other, batch), named, samples
            ), None
        except NormscopeError as error:
            return None, error

    def _forward(self, batch: Batch) -> tuple[Any, Tensor]:
        """Return output and loss; a model or loss may overwrite its inputs, which are copies."""
        if not self.problem.has_outputs:
            return None, self.problem.loss_on(copy_batch(batch))
        inputs = self.problem.single_input(batch)
        copied = copy_batch(batch) if inputs is None else (inputs.clone(), batch[1])
        output = self.problem.output_on(copied)
        versions = [] if isinstance(output, Tensor) else _versions(output)
        loss = self._loss(output, batch)
        if versions and versions != _versions(output):
            raise StateError(
                "the loss overwrites the model's output in place, which curvature needs; use the "
                "operation that makes a new tensor."
            )
        return output, loss

    def _loss(self, output: Any, batch: Batch) -> Tensor:
        if isinstance(output, Tensor):
            check_finite(output, "the model's output", batch)
            inputs = self.problem.single_input(batch)
            if inputs is not None and (output.dim() == 0 or len(output) != len(inputs)):
                raise ShapeError(
                    f"the model's output needs one row per sample, {len(inputs)}, got the shape "
                    f"{tuple(output.shape)}."
                )
        return self.problem.loss_of(output, self.problem.target_of(batch))

    def _check_loss(self, loss: Tensor, batch: Batch, number: int) -> None:
        """Reject a loss that is not finite, or not the one this batch had before.

        Products with a function that changes between them would mix several matrices.
        """
        check_finite(loss, "the loss", batch)
        value = loss.item()
        first = self._losses.setdefault(number, value)
        tolerance = torch.finfo(self.layout.dtype).eps ** 0.5
        if abs(value - first) > tolerance * max(abs(first), 1.0):
            raise StateError(
                f"batch {number} has a loss of {value:.6g}, and had {first:.6g} before: data and "
                "model must give the same values each time; give a list of batches, or make the "
                "DataLoader's augmentation follow torch's random numbers."
            )

    def _uses_channels_last(self, batch: Batch) -> bool:
        """Return whether to pass images in channels_last order: only if results do not change."""
        inputs = self.problem.single_input(batch)
        if inputs is None or not prefers_channels_last(inputs):
            return False
        if not any(isinstance(module, nn.Conv2d) for module in self.problem.model.modules()):
            return False
        shape = inputs.shape[1:]
        if shape not in self._takes_channels_last:
            same = _takes_either_order(lambda few: self._try_order(few, batch[1]), inputs)
            self._takes_channels_last[shape] = same
        return self._takes_channels_last[shape]

    def _try_order(self, few: Tensor, targets: Any) -> list[Tensor]:
        """Return the outputs of a few samples, and the gradient of their squares as one vector.

        One vector, since the gradient of a bias before a norm layer is rounding alone.
        """
        leaves = self.leaves()
        with self.isolated(leaves):
            output = self.problem.output_on((few.clone(), targets))
            outputs = [each for each in output_tensors(output) if each.requires_grad]
            squares = torch.stack([each.square().sum() for each in outputs]).sum()
            gradients = torch.autograd.grad(squares, leaves, materialize_grads=True)
        return [*(each.detach() for each in outputs), self.layout.join(gradients)]


def _versions(output: Any) -> list[int]:
    """Return how often each tensor of an output was overwritten; inference tensors count none."""
    return [0 if t.is_inference() else t._version for t in output_tensors(output)]


def prefers_channels_last(inputs: Tensor) -> bool:
    """Return whether convolutions of such images are faster in channels_last order.

    Args:
        inputs: of a convolution, or of a network that begins with one.

    Returns:
        True for single-precision images on a CPU with oneDNN.
    """
    library: Any = torch.backends.mkldnn
    images = inputs.dim() == 4 and inputs.dtype == torch.float32
    return images and inputs.device.type == "cpu" and bool(library.is_available())


def _takes_either_order(outputs_of: Callable[[Tensor], list[Tensor]], inputs: Tensor) -> bool:
    """Return whether a network gives the same outputs in either memory order, on a few samples.

    Some depend on it: ``view`` raises, ``as_strided`` reads other values, and dropout draws in
    the order of memory.

    >>> images = torch.arange(16.0).view(2, 2, 2, 2)
    >>> _takes_either_order(lambda x: [x.flatten(1)], images)
    True
    >>> _takes_either_order(lambda x: [x.as_strided((2, 8), (8, 1))], images)
    False
    """
    few = inputs[:_ORDER_SAMPLES]
    orders = torch.contiguous_format, torch.channels_last
    try:
        given, reordered = (outputs_of(few.contiguous(memory_format=order)) for order in orders)
        return all(_are_close(*pair) for pair in zip(given, reordered, strict=True))
    except Exception:  # a model may raise anything; the caller's own pass will raise it again
        return False


def _are_close(one: Tensor, other: Tensor) -> bool:
    bound = _ORDER_TOLERANCE * one.abs().max()
    return one.shape == other.shape and bool(((one - other).abs() <= bound).all())
