"""Parameter subsets, and flat vectors over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.problem.error_messages import require_module
from normscope.registry import unknown_name

Parameters: TypeAlias = str | Tensor | Iterable[str | Tensor] | None
"""Names of parameters or modules, or parameters; None for all that are trainable."""


@dataclass(frozen=True)
class ParameterLayout:
    """The layout of some parameters of a model in one flat vector.

    Args:
        names: qualified names, in the order of ``model.named_parameters()``, a tied weight once.
        shapes: the shape of each.
        dtype: the dtype of the flat vector.
        device: its device.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def size(self) -> int:
        """The number of entries of the flat vector."""
        return sum(shape.numel() for shape in self.shapes)

    @property
    def slices(self) -> dict[str, slice]:
        """The slice of each parameter in the flat vector, by name."""
        ends = accumulate((shape.numel() for shape in self.shapes), initial=0)
        return {
            name: slice(*bounds) for name, bounds in zip(self.names, pairwise(ends), strict=True)
        }

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return views of a flat vector in the shapes of the parameters."""
        pieces = torch.split(vector, [shape.numel() for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def join(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Return one flat vector of tensors in the parameters' shapes; None counts as zero."""
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.cat(
            [
                (zero.expand(shape) if tensor is None else to_dense(tensor))
                .reshape(-1)
                .to(self.dtype)
                for tensor, shape in zip(tensors, self.shapes, strict=True)
            ]
        )

    def checked(self, vector: Tensor, columns: bool = False) -> Tensor:
        """Check a vector, or a matrix of columns; return it detached in the layout's dtype.

        Args:
            vector: what a caller passed.
            columns: whether a matrix is expected.

        Returns:
            The same values.

        Raises:
            ArgumentTypeError: if it is not a tensor.
            ShapeError: if its length is not that of the layout.
            InputError: if it is on another device.
        """
        if not isinstance(vector, Tensor):
            raise ArgumentTypeError(
                f"expected a torch.Tensor, got {type(vector).__name__}; for NumPy arrays use "
                "to_scipy()."
            )
        wanted = f"({self.size}, columns)" if columns else f"({self.size},)"
        if vector.dim() != (2 if columns else 1) or vector.shape[0] != self.size:
            raise ShapeError(
                f"expected a tensor of shape {wanted}, one row per parameter entry, "
                f"got {tuple(vector.shape)}."
            )
        if vector.device != self.device:
            raise InputError(
                f"the vector is on {vector.device}, the model on {self.device}; move it with "
                "vector.to(device)."
            )
        return vector.detach().to(self.dtype)


def to_dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor; those of embeddings may be sparse."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def parameter_layout(model: nn.Module, params: Parameters = None) -> ParameterLayout:
    """Return the layout of the trainable parameters of a model, or of some of them.

    Args:
        model: the model.
        params: None for all; else qualified names ("head.weight"), names of modules, for all
            their trainable parameters ("features.3"), or the parameters themselves. The order is
            always the model's.

    Returns:
        The layout.

    Raises:
        InputError: if there is none, or one in ``params`` is not trainable or not the model's.

    >>> parameter_layout(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), "1").slices
    {'1.weight': slice(0, 2, None), '1.bias': slice(2, 3, None)}
    """
    require_module(model)
    check_initialized(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        held = sum(1 for _ in model.parameters())
        raise InputError(
            f"the model has no trainable parameter: all {held} have requires_grad=False; "
            "call model.requires_grad_(True)."
            if held
            else "the model has no parameter to differentiate by; give one with parameters."
        )
    if params is not None:
        if isinstance(params, str | Tensor) or not isinstance(params, Iterable):
            params = [params]
        chosen = set(_chosen(model, params))
        trainable = {name: p for name, p in trainable.items() if id(p) in chosen}
    if not trainable:
        raise InputError("params names no parameter; give at least one, or None for all.")
    return _layout(trainable)


def _layout(parameters: dict[str, nn.Parameter]) -> ParameterLayout:
    tensors = list(parameters.values())
    if any(tensor.is_complex() for tensor in tensors):
        raise InputError("complex parameters are not supported; give real ones.")
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    shapes = tuple(tensor.shape for tensor in tensors)
    return ParameterLayout(tuple(parameters), shapes, dtype, tensors[0].device)


def _chosen(model: nn.Module, params: Iterable[str | Tensor]) -> Iterator[int]:
    """Yield the ids of the chosen parameters."""
    named = dict(model.named_parameters(remove_duplicate=False))  # a tied weight: by any name
    for choice in params:
        matches = _matches(named, choice)
        trainable = [p for p in matches.values() if p.requires_grad]
        if not trainable:
            raise InputError(
                f"parameter {next(iter(matches))!r} has requires_grad=False; call "
                "requires_grad_(True) on it or leave it out."
            )
        yield from map(id, trainable)


def _matches(named: dict[str, nn.Parameter], choice: str | Tensor) -> dict[str, nn.Parameter]:
    if isinstance(choice, str):
        below = {n: p for n, p in named.items() if n == choice or n.startswith(choice + ".")}
        if not below:
            raise unknown_name("parameter or module", choice, named)
        return below
    if not isinstance(choice, Tensor):
        raise ArgumentTypeError(
            f"params takes names of parameters or modules, and parameters, got "
            f"{type(choice).__name__}."
        )
    same = {name: p for name, p in named.items() if p is choice}
    if not same:
        raise InputError(
            f"params holds a tensor of shape {tuple(choice.shape)} that is not a parameter of the "
            "model; take it from model.named_parameters()."
        )
    return same


def check_initialized(model: nn.Module) -> None:
    """Raise `InputError` if a lazy module of the model has not seen a batch yet."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise InputError(
                f"{name!r} has no shape yet; call the lazy model once on a batch before measuring."
            )
