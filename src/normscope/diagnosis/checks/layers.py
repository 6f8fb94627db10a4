"""Checks of norm layers and their neighbours: epsilon, precision, bias, the model's end."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnosis.examination import (
    Change,
    Examination,
    parameter_name,
    replace_module,
    replace_parameter,
)
from normscope.diagnosis.observation import Call, Observation
from normscope.diagnosis.registry import check
from normscope.diagnosis.results import Finding, listed
from normscope.layers.surgery.fold import plan_folding
from normscope.problem.copies import undisturbed
from normscope.problem.modes import is_batch_norm
from normscope.problem.recognition import is_cross_entropy
from normscope.text import format_number as number
from normscope.text import plural

EPSILON_SHARE = 0.3
"""Share of epsilon in what a layer divides by, squared, in the median, from which on to warn."""
CANCELLED = 1e-3
"""Gradient of a bias, in that of its weight, below which a norm layer cancels it."""
UNCHANGED = 1e-3
"""Relative change of a loss that counts as none; rounding in single precision is below."""
PRECISION_ERROR = 0.05
"""Error of running statistics by their dtype, in standard deviations, from which on to warn."""
_HALF = (torch.float16, torch.bfloat16)
_UPDATES = 200  # of running statistics, to see where they stop


@check()
def large_eps(exam: Examination) -> Iterator[Finding]:
    """Epsilon is large against the variance of the inputs, so that the layer does not normalize."""
    shares = {call.path: _epsilon_share(call) for call in exam.observed.calls}
    found = {path: share for path, share in shares.items() if share > EPSILON_SHARE}
    if not found:
        return
    paths = tuple(sorted(found, key=lambda path: -found[path]))
    eps = {path: _smaller_epsilon(exam.observed.of(path)[0]) for path in paths}

    def change(model: nn.Module) -> None:
        for path, value in eps.items():
            _set_epsilon(model.get_submodule(path), value)

    seen = exam.observe(change, backward=False)
    after = max(_epsilon_share(call) for call in seen.calls if call.path in found)
    worst = found[paths[0]]
    spread = exam.observed.of(paths[0])[0].spread
    variance = math.nan if spread is None else float(_varying(spread).median())
    yield Finding(
        "warning",
        paths,
        f"Epsilon ({exam.observed.of(paths[0])[0].eps:.2g}) is large against the variance of the "
        f"inputs ({variance:.2g}): the layer does not normalize.",
        f"epsilon is {number(100 * worst)} % of what the layer divides by, squared.",
        worst,
        f"model.get_submodule({paths[0]!r}).eps = {eps[paths[0]]:.1g}\n# or scale its input up",
        f"epsilon is {number(100 * after)} %.",
        after,
    )


def _epsilon_share(call: Call) -> float:
    """Return eps / (variance + eps), the median over what the layer normalizes; 0 if unknown."""
    in_use = call.statistics is None or call.training
    if call.spread is None or not call.eps or not in_use:
        return 0.0
    varying = _varying(call.spread)
    return float((call.eps / (varying + call.eps)).median()) if varying.numel() else 0.0


def _varying(spread: Tensor) -> Tensor:
    """Return the variances of what is not constant."""
    return spread[spread > 1e-20]


def _smaller_epsilon(call: Call) -> float:
    varying = torch.ones(1) if call.spread is None else _varying(call.spread)
    return float(varying.median()) / 1000


def _set_epsilon(module: nn.Module, value: float) -> None:
    for name in ("eps", "variance_epsilon", "epsilon"):
        if name in vars(module):
            module.__dict__[name] = value


@check()
def half_precision_statistics(exam: Examination) -> Iterator[Finding]:
    """Running statistics are kept in half precision, in which small updates are lost."""
    errors: dict[str, float] = {}
    for call in exam.observed.calls:
        layer: Any = call.module
        keeps = is_batch_norm(layer) and layer.running_mean is not None
        if keeps and layer.running_mean.dtype in _HALF and call.statistics is not None:
            errors[call.path] = _lost(layer, call, layer.running_mean.dtype)
    if not errors:
        return
    paths = tuple(sorted(errors, key=lambda path: -errors[path]))
    worst = errors[paths[0]]
    layer = exam.norms[paths[0]]
    after = _lost(layer, exam.observed.of(paths[0])[0], torch.float32)
    yield Finding(
        "warning" if worst > PRECISION_ERROR else "note",
        paths,
        f"The running statistics are {str(layer.running_mean.dtype).removeprefix('torch.')}: "
        "small updates are rounded away.",
        f"after {_UPDATES} updates by this batch they miss its mean by {number(worst)} standard "
        f"deviations (momentum {layer.momentum}).",
        worst,
        "for module in model.modules():\n"
        "    if isinstance(module, nn.modules.batchnorm._BatchNorm):\n"
        "        module.float()  # torch takes half-precision inputs there",
        f"in float32 they miss it by {number(after)}.",
        after,
    )


def _lost(layer: Any, call: Call, dtype: torch.dtype) -> float:
    """Return how far repeated updates end from the batch's mean, in standard deviations."""
    if call.statistics is None:
        return 0.0
    momentum = layer.momentum if layer.momentum is not None else 1 / _UPDATES
    target, variance = call.statistics.mean, call.statistics.unbiased_spread.clamp(min=1e-30)
    kept, batch_mean = torch.zeros_like(target, dtype=dtype), target.to(dtype)
    exact = torch.zeros_like(target)
    for _ in range(_UPDATES):
        kept = (1 - momentum) * kept + momentum * batch_mean
        exact = (1 - momentum) * exact + momentum * target
    return float(((kept.double() - exact).square() / variance).mean().sqrt())


@check()
def bias_before_norm(exam: Examination) -> Iterator[Finding]:
    """A bias is cancelled by the norm layer behind it."""
    paths = tuple(dict.fromkeys(_cancelled_biases(exam)))
    if not paths:
        return
    seen = exam.observed
    count = sum(seen.gradients[parameter_name(path, "bias")].numel() for path in paths)
    ratio = max(_bias_gradient(exam, path) for path in paths)

    def remove(model: nn.Module) -> None:
        for path in paths:
            model.get_submodule(path)._parameters["bias"] = None

    after = exam.loss(remove, exam.quiet_flags())
    before = exam.quiet_loss
    difference = abs(after - before) / max(abs(before), 1e-30)
    if difference > UNCHANGED:
        return
    yield Finding(
        "note",
        paths,
        "The norm layer behind subtracts the mean, and with it the bias: "
        f"{plural(count, 'parameter')} without effect.",
        f"the gradient of these biases is at most {ratio:.1g} of that of their weights.",
        ratio,
        f"for name in {listed(paths)}:\n"
        "    model.get_submodule(name).register_parameter('bias', None)",
        f"without them the loss changes by {difference:.1g} of its value.",
    )


def _cancelled_biases(exam: Examination) -> Iterator[str]:
    """Yield the layers whose bias has no gradient, directly before a norm over the batch."""
    for call in exam.observed.calls:
        subtracts = is_batch_norm(call.module) or isinstance(
            call.module, nn.modules.instancenorm._InstanceNorm
        )
        before = exam.observed.source_of(call) if subtracts else None
        if before is not None and before.module._parameters.get("bias") is not None:
            alone = len(list(exam.observed.users_of(before))) == 1
            if (
                alone
                and before.path not in exam.norms
                and _bias_gradient(exam, before.path) < CANCELLED
            ):
                yield before.path


def _bias_gradient(exam: Examination, path: str) -> float:
    """Return the norm of a bias's gradient in that of its weight's; infinite if not trained."""
    found = (exam.observed.gradients.get(parameter_name(path, n)) for n in ("bias", "weight"))
    bias, weight = found
    if bias is None or weight is None or not float(weight.norm()):
        return math.inf
    return float(bias.double().norm() / weight.double().norm())


@check()
def norm_before_output(exam: Examination) -> Iterator[Finding]:
    """The model ends with a norm layer, so that its outputs have a fixed scale."""
    last = _last_norm(exam)
    if last is None:
        return
    before = _scale_response(exam, last, None)
    if before is None or before > 0.5:
        return

    def remove(model: nn.Module) -> None:
        replace_module(model, last.path, nn.Identity())

    after = _scale_response(exam, last, remove)
    yield Finding(
        "warning" if is_cross_entropy(exam.problem.loss) else "note",
        (last.path,),
        "The model ends with a norm layer: its outputs have a scale that the layers before cannot "
        "change, so that probabilities stay soft.",
        f"with twice the weights before it the outputs change by {number(100 * before)} %.",
        before,
        f"model.set_submodule({last.path!r}, nn.Identity())",
        "the layer cannot be removed on a copy."
        if after is None
        else f"with twice the weights the outputs change by {number(100 * after)} %.",
        after,
    )


def _last_norm(exam: Examination) -> Call | None:
    """Return the call of the norm layer whose output is the model's, also behind a softmax."""
    seen = exam.observed
    if seen.output_source is None:
        return None
    call: Call | None = seen.calls[seen.output_source]
    if call is not None and isinstance(call.module, nn.Softmax | nn.LogSoftmax | nn.Flatten):
        call = seen.source_of(call)
    return call if call is not None and call.path in exam.norms else None


def _scale_response(exam: Examination, norm: Call, change: Change | None) -> float | None:
    """Return the relative change of the outputs if the last weights before a norm are doubled."""
    before = [c for c in exam.observed.calls[: norm.order] if c.has_weight]
    if not before or not norm.path:
        return None
    path = before[-1].path

    def double(model: nn.Module) -> None:
        if change is not None:
            change(model)
        for name in ("weight", "bias"):
            replace_parameter(model.get_submodule(path), name, lambda value: 2 * value)

    flags = exam.quiet_flags()
    plain = exam.forward(change, flags).output
    doubled = exam.forward(double, flags).output
    if plain is None or doubled is None:
        return None
    return float((doubled - plain).double().norm() / plain.double().norm().clamp(min=1e-30))


@check()
def softmax_before_cross_entropy(exam: Examination) -> Iterator[Finding]:
    """The outputs are probabilities, and the cross-entropy applies a softmax to them again."""
    output = exam.observed.output
    if output is None or output.dim() < 2 or not _applies_softmax(exam, output):
        return
    sums = output.double().sum(1)
    if output.shape[1] < 2 or float(output.min()) < 0 or float((sums - 1).abs().max()) > 1e-3:
        return
    source = exam.observed.output_source
    path = "" if source is None else exam.observed.calls[source].path
    floor = math.log(1 + (output.shape[1] - 1) / math.e)
    before, after = _gradient_norm(exam.observed), None
    if path:
        without = exam.observe(lambda model: replace_module(model, path, nn.Identity()))
        after = _gradient_norm(without)
    yield Finding(
        "error",
        (path,),
        "The outputs are probabilities; the cross-entropy takes logits and applies a softmax: the "
        f"loss cannot be below {number(floor, 3)}, however sure the model is.",
        f"the gradient has the norm {number(before, 3)}.",
        before,
        f"model.set_submodule({path!r}, nn.Identity())"
        if path
        else "# return the logits, without a softmax",
        "not measured: the softmax is not a module."
        if after is None
        else f"without the softmax it has the norm {number(after, 3)}.",
        after,
    )


def _applies_softmax(exam: Examination, output: Tensor) -> bool:
    """Return whether the loss is the cross-entropy, by its identity or its value on the outputs."""
    if is_cross_entropy(exam.problem.loss):
        return True
    target = exam.problem.target_of(exam.batch) if exam.problem.has_outputs else None
    if not isinstance(target, Tensor) or target.is_floating_point():
        return False
    try:
        value = float(nn.functional.cross_entropy(output.double(), target.long()))
    except (RuntimeError, ValueError, IndexError):  # the targets are not classes
        return False
    return math.isclose(value, exam.observed.loss, rel_tol=1e-5)


def _gradient_norm(seen: Observation) -> float:
    squares = [float(each.double().square().sum()) for each in seen.gradients.values()]
    return math.sqrt(sum(squares))


@check()
def unfoldable_norm(exam: Examination) -> Iterator[Finding]:
    """Folding batch norm for inference would change the outputs, so that it stays a layer."""
    if not any(getattr(each, "running_mean", None) is not None for each in exam.norms.values()):
        return
    with undisturbed(exam.model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = {n: why for n, why in plan_folding(exam.model).kept.items() if n in exam.batch_norms}
    if not kept:
        return
    total = len(exam.batch_norms)
    yield Finding(
        "note",
        tuple(kept),
        f"{len(kept)} of {plural(total, 'batch norm layer')} cannot be folded into a neighbour for "
        f"inference without changing the outputs ({next(iter(kept.values()))}).",
        f"{len(kept)} of {total} layers remain.",
        float(len(kept)),
        "folded = ns.layers.fold(model)  # keeps them, and folds the others",
        "the outputs stay the same; ns.layers.fold compares them.",
    )
