"""Directions of a loss surface: random, gradient, eigenvectors, checkpoints, or given."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from normscope.curvature import top_eigenvalue
from normscope.errors import ArgumentTypeError, DataError, InputError, ShapeError, StateError
from normscope.landscape.points import Plane
from normscope.problem.parameters import ParameterLayout
from normscope.problem.wrappers import rename_wrapped
from normscope.registry import unknown_name
from normscope.warn import warn

DIRECTIONS = ("random", "gradient", "hessian", "ggn", "checkpoints")
"""Directions by name."""
SCALINGS = ("filter", "layer", "none")
"""How a direction is scaled to the weights."""

Direction: TypeAlias = str | Tensor | Mapping[str, Tensor]
"""A name of `DIRECTIONS`, a flat vector, or tensors by the names of parameters."""
Checkpoint: TypeAlias = Mapping[str, Any] | nn.Module | str | os.PathLike[str]
"""A state dict, a model, or the path of a file with either's state dict."""

_PARALLEL = 0.999  # cosine from which on two directions do not span a plane


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a surface.

    Args:
        name: of its direction.
        vector: flat, over the parameters that move.
    """

    name: str
    vector: Tensor


def choose_axes(
    plane: Plane,
    wanted: Direction | Sequence[Direction],
    dimensions: int,
    scaling: str | None,
    checkpoints: Sequence[Tensor],
) -> list[Axis]:
    """Return the axes of a surface through the weights of a plane.

    Args:
        plane: without directions.
        wanted: one direction, or one for each axis. A name that occurs again stands for the next
            of its kind: the second eigenvector or component, another random vector.
        dimensions: number of axes, if one direction is wanted.
        scaling: "filter", "layer" or "none"; None: "filter" for random directions, else "none".
        checkpoints: flat weights, for the direction "checkpoints".

    Raises:
        InputError: if the number of directions is not one or two, or two of them are parallel.
    """
    if isinstance(wanted, str):
        names: list[Direction] = [wanted] * dimensions
    elif isinstance(wanted, Tensor | Mapping):
        names = [wanted]
    elif isinstance(wanted, Iterable):
        names = list(wanted)
    else:
        raise ArgumentTypeError(
            "directions must be a name, a tensor, tensors by parameter name, or a list of these, "
            f"got {wanted!r}."
        )
    if len(names) not in (1, 2):
        raise InputError(f"a surface has one or two directions, got {len(names)}.")
    if scaling is not None and scaling not in SCALINGS:
        raise unknown_name("scaling", scaling, SCALINGS)
    finder = _Finder(plane, Counter(each for each in names if isinstance(each, str)), checkpoints)
    axes = [finder.axis(each, scaling) for each in names]
    if len(axes) == 2 and abs(cosine(axes[0].vector, axes[1].vector)) > _PARALLEL:
        raise InputError(
            f"the directions {axes[0].name} and {axes[1].name} are parallel and span no plane; "
            "choose another, or dimensions=1."
        )
    return axes


def cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine of the angle between two vectors.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]))
    0.0
    """
    return float(torch.dot(one, other) / (one.norm() * other.norm()))


class _Finder:
    """Finds directions, each kind once for all axes.

    Args:
        plane: without directions.
        counts: how many of each name are wanted.
        checkpoints: flat weights.
    """

    def __init__(self, plane: Plane, counts: Counter[str], checkpoints: Sequence[Tensor]) -> None:
        self._plane, self._counts, self._checkpoints = plane, counts, checkpoints
        self._found: dict[str, list[Tensor]] = {}
        self._given = 0
        self._first_random: Tensor | None = None

    def axis(self, wanted: Direction, scaling: str | None) -> Axis:
        """Return the axis of one direction."""
        layout = self._plane.layout
        if isinstance(wanted, str):
            name, vector = wanted, self._named(wanted)
            scaling = scaling or ("filter" if wanted == "random" else "none")
        else:
            self._given += 1
            name, vector = f"given {self._given}", flat_direction(wanted, layout)
            if not bool(vector.any()):
                raise InputError(f"the direction {name!r} is zero; give one that moves a weight.")
        against = self._first_random if wanted == "random" else None
        if scaling in ("filter", "layer"):
            point = self._plane.evaluator.point
            weights = [point[name] for name in layout.names]
            vector = scale_to_weights(vector, weights, layout, scaling, against)
        elif isinstance(wanted, str):
            vector = vector if against is None else vector - (vector @ against) * against
            vector = vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)
        if wanted == "random":
            self._first_random = vector
        _check_direction(name, vector, scaling)
        return Axis(name, vector)

    def _named(self, name: str) -> Tensor:
        if name not in DIRECTIONS:
            raise unknown_name("direction", name, DIRECTIONS)
        if name not in self._found:
            self._found[name] = getattr(self, f"_find_{name}")(self._counts[name])
        if not self._found[name]:
            raise InputError(
                f"there is no further direction {name!r}; use dimensions=1, or name another for "
                f"the second axis: [{name!r}, 'random']."
            )
        return self._found[name].pop(0)

    def _find_random(self, count: int) -> list[Tensor]:
        layout = self._plane.layout
        generator = torch.Generator().manual_seed(self._plane.seed)
        drawn = (torch.randn(layout.size, generator=generator) for _ in range(count))
        return [self._fitted(each) for each in drawn]

    def _find_gradient(self, count: int) -> list[Tensor]:
        return [self._fitted(gradient(self._plane))]

    def _find_hessian(self, count: int) -> list[Tensor]:
        return self._eigenvectors("hessian", count)

    def _find_ggn(self, count: int) -> list[Tensor]:
        return self._eigenvectors("ggn", count)

    def _eigenvectors(self, kind: str, count: int) -> list[Tensor]:
        plane, problem = self._plane, self._plane.problem
        top = top_eigenvalue(
            problem.model,
            problem.loss,
            problem.data,
            kind=kind,
            mode=derivative_mode(plane.mode),
            k=count,
            params=plane.layout.names,
            seed=plane.seed,
            progress=False,
        )
        return [self._fitted(_with_sign(each)) for each in top.vectors.unbind(1)]

    def _find_checkpoints(self, count: int) -> list[Tensor]:
        centre = self._fitted(flat_weights(self._plane.evaluator.point, self._plane.layout))
        moved = [self._fitted(each) - centre for each in self._checkpoints]
        moved = [each for each in moved if bool(each.any())]
        if not moved:
            raise InputError(
                "the direction 'checkpoints' needs checkpoints=[...] with weights other than those "
                "of the model."
            )
        _, sizes, rows = torch.linalg.svd(torch.stack(moved).double(), full_matrices=False)
        kept = rows[sizes > 1e-6 * sizes[0]][:count]
        return [self._fitted(_with_sign(each)) for each in kept]

    def _fitted(self, vector: Tensor) -> Tensor:
        """Return a vector on the layout's device, in the precision in which weights are moved."""
        layout = self._plane.layout
        return vector.to(layout.device, torch.promote_types(layout.dtype, torch.float32))


def derivative_mode(mode: str) -> str:
    """Return the mode in which the derivatives of a surface are taken.

    With population statistics there is no derivative through them: the batch's are used.
    """
    return "train" if mode == "population" else mode


def gradient(plane: Plane) -> Tensor:
    """Return the gradient of the loss over all batches at the centre, flat.

    Args:
        plane: the weights; its directions are not used.
    """
    plane = Plane(plane.problem, plane.layout, (), derivative_mode(plane.mode), plane.seed)
    evaluator, layout = plane.evaluator, plane.layout
    total = torch.zeros(layout.size, dtype=layout.dtype, device=layout.device)
    for number, batch in evaluator.batches():
        if factor := plane.data.factors[number]:
            found = evaluator(batch, number)
            with evaluator.isolated(found.leaves, number):
                parts = torch.autograd.grad(found.loss, found.leaves, allow_unused=True)
            total += factor * layout.join(parts)
    return total


def scale_to_weights(
    vector: Tensor,
    weights: Sequence[Tensor],
    layout: ParameterLayout,
    scaling: str,
    against: Tensor | None = None,
) -> Tensor:
    r"""Return a direction scaled to the weights.

    .. math:: d_i \leftarrow \frac{d_i}{\lVert d_i \rVert} \lVert w_i \rVert

    i runs over the filters, the slices of a weight along its first dimension ("filter"), or over
    whole tensors ("layer"). Parameters with one dimension (biases, scales and shifts of norm
    layers) do not move.

    Args:
        vector: flat.
        weights: in the layout's order.
        layout: of the vector.
        scaling: "filter" or "layer".
        against: another direction, to which each filter or tensor is made orthogonal first.
    """
    others = [None] * len(weights) if against is None else layout.split(against)
    scaled = []
    for part, weight, other in zip(layout.split(vector), weights, others, strict=True):
        if weight.dim() < 2:
            scaled.append(torch.zeros_like(part))
            continue
        rows = len(weight) if scaling == "filter" else 1
        given = part.reshape(rows, -1)
        if other is not None:
            given = _orthogonal(given, other.reshape(rows, -1))
        wanted = weight.to(part.dtype).reshape(rows, -1).norm(dim=1, keepdim=True)
        length = given.norm(dim=1, keepdim=True)
        scaled.append(given * (wanted / length.where(length > 0, torch.ones_like(length))))
    return torch.cat([each.reshape(-1) for each in scaled])


def _orthogonal(rows: Tensor, others: Tensor) -> Tensor:
    """Return rows without their projections on other rows; zero if nothing but rounding is left."""
    squares = others.square().sum(1, keepdim=True)
    shares = (rows * others).sum(1, keepdim=True) / squares.where(squares > 0, 1)
    left = rows - shares * others
    rounding = 16 * torch.finfo(rows.dtype).eps * rows.norm(dim=1, keepdim=True)
    return left.where(left.norm(dim=1, keepdim=True) > rounding, 0)


def flat_direction(given: Tensor | Mapping[str, Tensor], layout: ParameterLayout) -> Tensor:
    """Return a direction that a caller gave as one flat vector.

    Args:
        given: a flat vector, or tensors by name; parameters that are not named do not move.
        layout: of the parameters.

    Raises:
        ShapeError: if a tensor does not have its parameter's shape.
        UnknownNameError: if a name is not a parameter's.
        ArgumentTypeError: if it is neither.
    """
    dtype = torch.promote_types(layout.dtype, torch.float32)
    for each in given.values() if isinstance(given, Mapping) else (given,):
        if isinstance(each, Tensor) and (each.is_complex() or each.layout != torch.strided):
            raise ArgumentTypeError("a direction must be of dense tensors of real numbers.")
    if isinstance(given, Tensor):
        return layout.checked(given).to(dtype)
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            "a direction is a name, a flat tensor or a mapping of parameter names to tensors, got "
            f"{type(given).__name__}."
        )
    for name in given:
        if name not in layout.names:
            raise unknown_name("parameter", str(name), layout.names)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    for name, tensor in given.items():
        _check_shape(f"the direction of {name!r}", tensor, shapes[name])
    parts = [given.get(name) for name in layout.names]
    moved = [None if each is None else each.detach().to(layout.device) for each in parts]
    return layout.join(moved).to(dtype)


def flat_weights(state: Mapping[str, Any], layout: ParameterLayout) -> Tensor:
    """Return the weights of a state dict as one flat vector, in at least single precision.

    Raises:
        InputError: if a parameter is missing or not finite.
        ShapeError: if one has another shape.
    """
    dtype = torch.promote_types(layout.dtype, torch.float32)
    state = rename_wrapped(state, layout.names)
    parts = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if name not in state:
            raise InputError(
                f"a checkpoint has no parameter {name!r}; give state dicts of this model."
            )
        _check_shape(f"{name!r} of a checkpoint", state[name], shape)
        if not bool(torch.isfinite(state[name]).all()):
            raise InputError(f"{name!r} of a checkpoint is not finite; leave that checkpoint out.")
        parts.append(state[name].detach().to(layout.device, dtype).reshape(-1))
    return torch.cat(parts)


def read_state(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the state dict of a checkpoint.

    Args:
        checkpoint: a state dict, a model, or the path of a file that ``torch.save`` wrote of a
            state dict, of a mapping with one under "model", "state_dict" or "model_state_dict", or
            that `normscope.fit` wrote. A file is read without running code.

    Raises:
        DataError: if the file cannot be read.
        ArgumentTypeError: if it is something else.
    """
    if isinstance(checkpoint, nn.Module):
        return checkpoint.state_dict()
    content: Any = checkpoint
    if isinstance(checkpoint, str | os.PathLike):
        try:
            content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # a file may hold anything; torch's advice may be unsafe
            reason = "it is not a file that torch.save wrote of tensors and plain values"
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
            raise DataError(f"{checkpoint} cannot be read as a state dict ({reason}).") from error
    if isinstance(content, Mapping):
        for key in ("model", "state_dict", "model_state_dict"):
            if isinstance(content.get(key), Mapping):
                return dict(content[key])
        return content
    raise ArgumentTypeError(
        f"a checkpoint is a state dict, a model or a path, got {type(content).__name__}."
    )


def checkpoint_list(checkpoints: Iterable[Checkpoint] | Checkpoint) -> list[Checkpoint]:
    """Return checkpoints as a list; one state dict, model or path is a list of one.

    Raises:
        ArgumentTypeError: if they are not a list.
    """
    if isinstance(checkpoints, Mapping | nn.Module | str | os.PathLike):
        return [checkpoints]
    if not isinstance(checkpoints, Iterable):
        raise ArgumentTypeError(
            "checkpoints must be a list of state dicts, models or paths, or one of them, got "
            f"{checkpoints!r}."
        )
    return list(checkpoints)


def _check_shape(what: str, tensor: Any, shape: torch.Size) -> None:
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(f"{what} must be a tensor, got {type(tensor).__name__}.")
    if tensor.shape != shape:
        raise ShapeError(f"{what} must have the shape {tuple(shape)}, got {tuple(tensor.shape)}.")


def _check_direction(name: str, vector: Tensor, scaling: str | None) -> None:
    if not bool(torch.isfinite(vector).all()):
        raise StateError(f"the direction {name!r} is not finite; check the weights and the data.")
    if not bool(vector.any()):
        if scaling in ("filter", "layer"):
            raise StateError(
                f"the direction {name!r} is zero once biases and norm layers are held fixed; "
                "choose another, or scaling='none'."
            )
        raise StateError(f"the direction {name!r} is zero; choose another.")


def _with_sign(vector: Tensor) -> Tensor:
    """Return an eigenvector with its largest entry positive: solvers return either sign."""
    return vector * vector[vector.abs().argmax()].sign()


def warn_if_oblique(axes: Sequence[Axis]) -> float:
    """Return the cosine between two axes; warn if a plot would show their plane distorted."""
    if len(axes) < 2:
        return 0.0
    angle = cosine(axes[0].vector, axes[1].vector)
    if abs(angle) > 0.1:
        warn(
            f"the directions {axes[0].name} and {axes[1].name} are not orthogonal (cosine "
            f"{angle:.2g}): every value is exact, but plots show their plane distorted."
        )
    return angle
