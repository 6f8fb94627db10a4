"""Checks before the work starts: of a few batches, and of the modules' ``training`` flags.

Mode "as_is" follows these flags, which may differ in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from normscope.errors import InputError, NormscopeError, StateError
from normscope.problem.batch import Batch, has_samples, rows, sample_count, tensors_of
from normscope.problem.error_messages import is_finite
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import isolated
from normscope.problem.loss import WholeLoss, WrongLabelError
from normscope.problem.modes import EVAL_MODE_MESSAGE, is_in_eval_mode
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.warn import warn

Range = tuple[int, int] | None  # of integers; None for a tensor of floating-point numbers


def try_batches(problem: Problem, batches: Sequence[Batch], mode: str, seed: int) -> list[float]:
    """Return the loss of every batch, so that a bad batch fails early.

    Args:
        problem: model and loss; neither is changed.
        batches: of its data.
        mode: "train", "frozen", "eval" or "as_is".
        seed: of dropout and noise.
    """
    evaluator = Evaluator(problem, parameter_layout(problem.model), mode, seed)
    return [
        evaluator(problem.prepare(batch), number).loss.item()
        for number, batch in enumerate(batches)
    ]


def check_data(
    problem: Problem,
    batches: Sequence[Batch],
    batch_size: int | None,
    seed: int,
    mode: str = "train",
) -> list[float]:
    """Evaluate batches and, of data in memory, the samples most unlike them.

    These are samples with a value that is not finite, and those with the smallest and the largest
    integer outside the range of the batches. The model and the loss decide whether they are bad.

    Args:
        problem: model, loss and data; none is changed.
        batches: of the data, the first that training would use.
        batch_size: samples per step, drawn from data that is one batch; None: the batches as given.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        The losses of the batches.
    """
    with locate_errors(problem):
        losses = try_batches(problem, batches, mode, seed)
        try_batches(problem, _outliers(problem, _ranges(batches), batch_size), mode, seed)
    return losses


@contextmanager
def locate_errors(problem: Problem) -> Iterator[None]:
    """Add to an error about values the index of the first sample of the data that has one.

    Args:
        problem: whose data is searched if it is in memory. Data that is drawn on demand is not:
            reading it may change what is drawn later.

    Raises:
        InputError: the one about a label, with its sample.
        StateError: the one about values that are not finite, with the sample.
    """
    try:
        yield
    except WrongLabelError as error:
        label = error.label
        targets = partial(_targets_of, problem)
        location = _location(problem, lambda tensor: tensor == label, targets)
        raise InputError(f"{error}{location}") from error
    except StateError as error:
        location = _location(problem, lambda tensor: ~torch.isfinite(tensor))
        if not location:  # the error is not about the data
            raise
        raise StateError(f"{error}{location}") from error


def _targets_of(problem: Problem, batch: Batch) -> Iterable[Tensor]:
    """Return the labels of a batch; inputs may be integers too."""
    if not isinstance(problem.loss, WholeLoss):
        return tensors_of(problem.target_of(batch))
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    return tensors_of(batch[1]) if is_pair else ()


def _location(
    problem: Problem,
    is_bad: Callable[[Tensor], Tensor],
    searched: Callable[[Batch], Iterable[Tensor]] = tensors_of,
) -> str:
    """Return a sentence with the first sample that has a bad value; "" if none is found."""
    for number, batch in enumerate(problem.stored_batches):
        samples = sample_count(batch) if has_samples(batch) else 0
        found = []
        for tensor in searched(batch):
            if tensor.dim() and len(tensor) == samples and samples:
                bad = is_bad(tensor.detach()).reshape(samples, -1).any(1)
                found += bad.nonzero().flatten()[:1].tolist()
        if found:
            of = "the data" if problem.is_one_batch else f"batch {number} of the data"
            return f" The first such sample is number {min(found)} of {of}, counted from 0."
    return ""


def _outliers(problem: Problem, known: Sequence[Range], batch_size: int | None) -> list[Batch]:
    """Return batches of the samples farthest from the known ranges; none of data on demand."""
    if isinstance(problem.data, list):
        return _farthest_batches(problem.data, known)
    if problem.is_one_batch and batch_size is not None and _is_outside(problem.data, known):
        return _batches_of_outliers(problem.data, known, batch_size)
    return []


def _ranges(batches: Sequence[Batch]) -> list[Range]:
    """Return the range of the integers in each tensor of the batches; None for other tensors."""
    columns = zip(*(tensors_of(batch) for batch in batches), strict=False)
    return [
        None
        if any(map(_has_reals, tensors)) or not all(tensor.numel() for tensor in tensors)
        else (min(int(t.min()) for t in tensors), max(int(t.max()) for t in tensors))
        for tensors in columns
    ]


def _is_outside(batch: Batch, known: Sequence[Range]) -> bool:
    return any(
        not is_finite(tensor) if among is None or _has_reals(tensor) else _exceeds(tensor, among)
        for tensor, among in zip(tensors_of(batch), known, strict=False)
    )


def _exceeds(tensor: Tensor, among: tuple[int, int]) -> bool:
    """Return whether an integer is outside a range; False if there is none."""
    if not tensor.numel():
        return False
    low, high = (int(end) for end in tensor.aminmax())
    return low < among[0] or high > among[1]


def _excess(batch: Batch, known: Sequence[Range], parts: int) -> Tensor:
    """Return how far each part of a batch is outside: two rows, below and above, for each tensor.

    Integers count from the ends of their range; a value that is not finite counts 1.
    """
    found = [torch.zeros(parts, dtype=torch.float64)]
    for tensor, among in zip(tensors_of(batch), known, strict=False):
        if not tensor.numel():
            continue
        flat = tensor.detach().reshape(parts, -1)
        if among is None or _has_reals(tensor):
            bad = (~torch.isfinite(flat)).any(1).cpu().double()
            found += [bad, bad]
        else:
            low, high = flat.amin(1).cpu().double(), flat.amax(1).cpu().double()
            found += [among[0] - low, high - among[1]]
    return torch.stack(found).clamp(min=0)


def _farthest_batches(batches: Sequence[Batch], known: Sequence[Range]) -> list[Batch]:
    """Return the batches farthest outside, at most one for each end of each range."""
    farthest: dict[int, tuple[float, Batch]] = {}
    for batch in batches:
        if _is_outside(batch, known):
            for end, value in enumerate(_excess(batch, known, 1).flatten().tolist()):
                if value > farthest.get(end, (0.0, None))[0]:
                    farthest[end] = (value, batch)
    return list({id(batch): batch for _, batch in farthest.values()}.values())


def _batches_of_outliers(batch: Batch, known: Sequence[Range], size: int) -> list[Batch]:
    """Return batches of the samples farthest outside, filled with other outliers, then others."""
    excess = _excess(batch, known, sample_count(batch))
    farthest = [int(end.argmax()) for end in excess if bool(end.any())]
    outside = excess.any(0)
    others = [*outside.nonzero().flatten().tolist(), *(~outside).nonzero().flatten().tolist()]
    order = list(dict.fromkeys([*farthest, *others]))
    index = torch.tensor(order, device=next(tensors_of(batch)).device)
    starts = range(0, len(set(farthest)), size)
    return [rows(batch, index[start : start + size]) for start in starts]


def _has_reals(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def warn_of_flags(problem: Problem, draw: Callable[[], Batch], seed: int) -> None:
    """Warn about a model in eval mode, and about one whose ``train()`` would set other flags.

    A model without any module in train mode is evaluated in both modes: there is no warning if the
    losses are equal, as without batch normalization and dropout.

    Args:
        problem: model and loss; neither is changed.
        draw: returns a batch; called only if it is needed.
        seed: of dropout and noise.
    """
    message = None
    if is_in_eval_mode(problem.model):
        if _mode_matters(problem, draw(), seed):
            message = EVAL_MODE_MESSAGE
    else:
        changed = _changed_by_train(problem.model)
        if changed is not None:
            message = (
                f"the model is measured as it is, but its train() method would change {changed}; "
                "call model.train() first if training does."
            )
    if message is not None:
        warn(message)


def _mode_matters(problem: Problem, batch: Batch, seed: int) -> bool:
    """Return whether train mode gives another loss than eval mode, or none."""
    layout, placed = parameter_layout(problem.model), problem.prepare(batch)
    try:
        evaluated = Evaluator(problem, layout, "eval", seed)(placed).loss
    except NormscopeError:  # the measurement raises it too
        return False
    try:
        trained = Evaluator(problem, layout, "train", seed)(placed).loss
    except NormscopeError:  # such as batch statistics of one sample
        return True
    return not torch.equal(evaluated, trained)


def _changed_by_train(model: nn.Module) -> str | None:
    """Return the first flag that the model's own ``train()`` would change, in words."""
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    if all(_has_plain_train(module) for module in modules.values()):
        return None
    flags = {name: module.training for name, module in modules.items()}
    trained = {name: parameter.requires_grad for name, parameter in parameters.items()}
    with isolated(model):
        try:
            model.train()
            for name, module in modules.items():
                if module.training != flags[name]:
                    return f"the training flag of {name!r}" if name else "its own training flag"
            for name, parameter in parameters.items():
                if parameter.requires_grad != trained[name]:
                    return f"requires_grad of {name!r}"
        finally:
            for name, parameter in parameters.items():
                parameter.requires_grad_(trained[name])
    return None


def _has_plain_train(module: nn.Module) -> bool:
    return type(module).train is nn.Module.train and "train" not in module.__dict__
