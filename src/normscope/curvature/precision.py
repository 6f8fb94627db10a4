"""The precision of a measurement: that of the parameters, or float64 to judge its rounding."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.linalg import vector_norm

from normscope.problem.batch import Batch, first_rows, positions_per_sample, to_double
from normscope.problem.evaluate import Evaluation, Evaluator

_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
_FEW_SAMPLES = 4  # enough for batch statistics
_FEW_SEQUENCES = 2  # ... of samples with several outputs each, such as tokens
# Entries summed in the vector's own dtype. In float32 torch's norm of 10^8 entries is 1 % short.
_NORM_ENTRIES = 1 << 16
_PRODUCT_ENTRIES = 1 << 17
OTHER_SCALE = 1.37
"""Factor of a vector that shows the rounding of a product: a power of two would round alike."""
_LOGGER = logging.getLogger(__name__)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch off an autocast around the measurement: curvature has the precision of the parameters.

    An autocast inside the model's own forward pass stays.

    Yields:
        Nothing.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
    ...     (torch.ones(2, 2) @ torch.ones(2)).dtype
    torch.float32
    """
    with ExitStack() as stack:
        for kind in _DEVICE_TYPES:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def evaluate_in_double(
    evaluator: Evaluator, batch: Batch, number: int
) -> tuple[Evaluator, Batch, Evaluation] | None:
    """Return the model's values on a few samples in float64.

    Args:
        evaluator: of the model.
        batch: of which the first samples are taken; all of it if it has none.
        number: its number.

    Returns:
        An evaluator with parameters and buffers in float64, the samples, and their values; None if
        the model, the loss or the device does not take float64 or so few samples.
    """
    try:
        several = positions_per_sample(evaluator.problem.target_of(batch)) >= _FEW_SAMPLES
        few = first_rows(batch, _FEW_SEQUENCES if several else _FEW_SAMPLES)
        wide, samples = in_double(evaluator), to_double(few)
        return wide, samples, wide(samples, number)
    except Exception as reason:  # user code may raise anything
        _LOGGER.debug("no evaluation in float64: %s", reason)
        return None


def length(vector: Tensor) -> float:
    """Return the norm of a vector whose squares may overflow or underflow.

    >>> torch.full((4,), 1e-30).norm().item(), f"{length(torch.full((4,), 1e-30)):.1e}"
    (0.0, '2.0e-30')
    """
    found = _norm(vector)
    if _keeps_squares(found, vector.dtype):
        return found
    return float(vector_norm(vector, dtype=torch.float64))  # exact, and much slower


def _keeps_squares(length: float, dtype: torch.dtype) -> bool:
    """Return whether squares of entries of a vector of that length lose no digits that count."""
    limits = torch.finfo(dtype)
    return bool(limits.tiny**0.5 / limits.eps < length < limits.max**0.5 * limits.eps)


def _norm(vector: Tensor) -> float:
    flat = vector.reshape(-1)
    whole = len(flat) - len(flat) % _NORM_ENTRIES
    if whole == 0:
        return float(flat.norm())
    parts = flat[:whole].view(-1, _NORM_ENTRIES).norm(dim=1), flat[whole:].norm().reshape(1)
    return float(torch.cat(parts).double().norm())


def components(basis: Tensor, vector: Tensor) -> Tensor:
    """Return the inner products of the rows of a basis with a vector, float64 on the CPU.

    >>> components(torch.eye(2), torch.tensor([3.0, 4.0]))
    tensor([3., 4.], dtype=torch.float64)
    """
    pieces = torch.split(basis, _PRODUCT_ENTRIES, dim=1), torch.split(vector, _PRODUCT_ENTRIES)
    pairs = zip(*pieces, strict=True)
    return torch.stack([(rows @ part).double().cpu() for rows, part in pairs]).sum(0)


def inner_products(vectors: Sequence[Tensor]) -> Tensor:
    """Return the inner products of vectors of one size, float64, (count, count).

    Vectors whose squares underflow are multiplied by a number first.

    >>> inner_products([torch.tensor([1e-25]), torch.tensor([2e-25])])
    tensor([[1.0000e-50, 2.0000e-50],
            [2.0000e-50, 4.0000e-50]], dtype=torch.float64)
    """
    products = _gram_matrix(vectors)
    if _keeps_squares(math.sqrt(float(products.diagonal().max())), vectors[0].dtype):
        return products
    unit = max(float(vector.abs().max()) for vector in vectors) or 1.0
    return _gram_matrix([vector / unit for vector in vectors]) * unit**2


def _gram_matrix(vectors: Sequence[Tensor]) -> Tensor:
    """Return the inner products part by part: a matrix of all vectors would be copied first."""
    parts = zip(*(torch.split(vector, _PRODUCT_ENTRIES) for vector in vectors), strict=True)
    rows = map(torch.stack, parts)
    return torch.stack([(each @ each.T).double().cpu() for each in rows]).sum(0)


def least_product(dtype: torch.dtype) -> float:
    """Return the size below which products of a dtype have lost digits to underflow.

    The search is in float32 at least, and needs all digits of its vectors.
    """
    wide = torch.finfo(torch.promote_types(dtype, torch.float32))
    return max(torch.finfo(dtype).tiny, wide.tiny / wide.eps)


def perturbed(tensor: Tensor, change: float, seed: int = 0) -> Tensor:
    """Return a tensor whose entries differ by a relative change, at random, that its dtype shows.

    >>> perturbed(torch.ones(2), 1e-3).sub(1).abs().max() < 1e-2
    tensor(True)
    """
    size = math.copysign(max(abs(change), 4 * torch.finfo(tensor.dtype).eps), change)
    return (tensor * (1 + size * random_like(tensor, seed))).to(tensor.dtype)


def random_like(tensor: Tensor, seed: int) -> Tensor:
    """Return a normal random tensor in float64 with the shape and device of another.

    >>> random_like(torch.ones(3, dtype=torch.half), seed=0).dtype
    torch.float64
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device)


def in_double(evaluator: Evaluator) -> Evaluator:
    """Return an evaluator of the same model with parameters and buffers in float64."""
    wide = evaluator.on(evaluator.problem, to_double(evaluator.point))
    wide.layout = replace(evaluator.layout, dtype=torch.float64)
    return wide
