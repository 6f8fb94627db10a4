"""Checks of signals: values that are not finite, dead channels, collapse, gradients by depth."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.diagnosis.examination import (
    Change,
    Examination,
    parameter_name,
    replace_module,
    replace_parameter,
)
from normscope.diagnosis.observation import Call, Observation, signal_of
from normscope.diagnosis.registry import check
from normscope.diagnosis.results import Finding
from normscope.problem.batch import map_tensors, tensors_of
from normscope.text import format_number as number
from normscope.text import plural

DEAD_SHARE = 0.6
"""Share of dead channels of a layer from which on to warn; below, from `DEAD_NOTE` on, a note."""
DEAD_NOTE = 0.1
CHANCE = 0.01
"""Probability of as many dead channels, each dead with probability 1/2, that counts as chance."""
CONSTANT_INPUTS = 0.3
"""Share of constant input features from which on to name them."""
COLLAPSED = 1e-6
"""Variance over samples, in the mean square, below which features are the same for all samples."""
GROWTH = 1e3
"""Factor between the gradients at the first and the last layer from which on to warn."""
FEWEST_LAYERS = 6
"""Layers from which on a trend of the gradient with depth is fitted."""
STRAIGHT = 0.5
"""Share of the variance of log gradients that the trend must explain."""


@check(needs_finite=False)
def non_finite(exam: Examination) -> Iterator[Finding]:
    """The first module that produces an infinite or NaN value, forward or backward."""
    seen = exam.observed
    found = seen.non_finite or _non_finite_gradient(seen)
    if found is None:
        return
    path, backward, count = found
    bad = sum(int((~each.isfinite()).sum()) for each in _inputs(exam))
    outside = not math.isfinite(seen.loss) and (backward or path == "loss")  # as NaN targets do
    if bad and (outside or path == "the data"):
        yield _data_finding(exam, bad)
        return
    known = path in dict(exam.model.named_modules())
    after = None if backward or not known else _loss_without_infinities(exam, path)
    what = "gradient" if backward else "output"
    by = seen.of(path)
    largest = by[0].input.largest if by and by[0].input is not None else math.nan
    given = f"; its largest finite input is {number(largest, 3)}" if by else ""
    yield Finding(
        "error",
        (path,),
        f"This is the first module whose {what} is not finite"
        + (": the derivative of what it computes is infinite or NaN." if backward else "."),
        f"{plural(count, 'value')} of the {what} {_be(count)} infinite or NaN{given}.",
        float(count),
        f"# in {path or 'forward'}: a logarithm, root, division or overflow?\n"
        "x = x.clamp(min=1e-6)  # for instance",
        "not measured: the fix depends on the operation."
        if after is None
        else f"with its infinite values replaced by 0 the loss is {number(after, 3)}"
        + ("." if math.isfinite(after) else "; there are others."),
        after,
    )


def _data_finding(exam: Examination, count: int) -> Finding:
    """Return that inputs or targets have values that are not finite."""
    clean = map_tensors(exam.batch, lambda t: t.nan_to_num() if t.is_floating_point() else t)
    after = exam.loss(batch=clean)
    return Finding(
        "error",
        ("the data",),
        "The data has values that are not finite.",
        f"{plural(count, 'value')} of the first batch {_be(count)} infinite or NaN; the loss is "
        f"{number(exam.observed.loss, 3)}.",
        float(count),
        "inputs = inputs.nan_to_num()  # or leave these samples out",
        f"with finite values in their place the loss is {number(after, 3)}.",
        after,
    )


def _inputs(exam: Examination) -> list[Tensor]:
    """Return the floating-point tensors of the first batch."""
    return [each for each in tensors_of(exam.batch) if each.is_floating_point()]


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _non_finite_gradient(seen: Observation) -> tuple[str, bool, int] | None:
    for name, gradient in seen.gradients.items():
        count = int((~gradient.isfinite()).sum())
        if count:
            return name.rpartition(".")[0], True, count
    return None if math.isfinite(seen.loss) else ("loss", False, 1)


def _loss_without_infinities(exam: Examination, path: str) -> float:
    def replace(model: nn.Module) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if isinstance(output, Tensor):
                return torch.nan_to_num(output, 0.0, 0.0, 0.0)
            return output

        model.get_submodule(path).register_forward_hook(hook)

    return exam.loss(replace)


@check()
def dead_channels(exam: Examination) -> Iterator[Finding]:
    """Channels of a layer are the same for all samples and get no gradient."""
    found: list[tuple[Call, Call, Tensor]] = []
    for layer, activation in _layers_before_activations(exam.observed):
        dead = _dead(exam.observed, layer, activation)
        if dead.numel() and float(dead.double().mean()) >= DEAD_NOTE:
            found.append((layer, activation, dead))
    if not found:
        return
    fresh = {layer.path: _fresh_copy(layer.module) for layer, _, _ in found}

    def reset(model: nn.Module) -> None:
        for path, new in fresh.items():
            _take_parameters(model.get_submodule(path), new)

    seen = exam.observe(reset, backward=False)
    for layer, activation, dead in found:
        yield _dead_finding(layer, activation, dead, _constant_share(seen, layer, activation))


def _dead_finding(layer: Call, activation: Call, dead: Tensor, after: float) -> Finding:
    share = float(dead.double().mean())
    severe = share >= DEAD_SHARE and after < share / 2 and not _may_be_chance(layer, dead)
    return Finding(
        "warning" if severe else "note",
        tuple(dict.fromkeys((layer.path, activation.path))),
        f"{int(dead.sum())} of {plural(dead.numel(), 'channel')} of this layer are constant and "
        "get no gradient on this batch: they do not train.",
        f"{number(100 * share)} % of the channels are dead.",
        share,
        f"model.get_submodule({layer.path!r}).reset_parameters()\n"
        "# and a lower learning rate, if they died in training",
        f"after it {number(100 * after)} % are constant.",
        after,
    )


def _may_be_chance(layer: Call, dead: Tensor) -> bool:
    """Return whether so many dead channels are usual for fresh weights.

    Inputs that hardly vary, such as means over an image, leave the sign of a unit to its weights:
    one of two fresh units is dead. With several positions per sample that is rare.
    """
    positions = math.prod(layer.output.shape[2:]) if layer.output is not None else 1
    count, width = int(dead.sum()), dead.numel()
    tail = sum(math.comb(width, each) for each in range(count, width + 1)) / 2**width
    return positions == 1 and tail > CHANCE


def _layers_before_activations(seen: Observation) -> Iterator[tuple[Call, Call]]:
    """Yield each layer with a weight, with the next call that shows its activation.

    Its own output if that is constant; else that of the layer behind, or the input there.
    """
    for layer in seen.calls:
        if layer.module._parameters.get("weight") is None or layer.output is None:
            continue
        following = [each for each in seen.calls[layer.order :][:2] if each.output is not None]
        yield layer, following[-1]


def _dead(seen: Observation, layer: Call, activation: Call) -> Tensor:
    """Return which channels are constant behind a layer and have no gradient in its weight.

    None of a layer whose inputs are all constant: those died before it.
    """
    gradient = seen.gradients.get(parameter_name(layer.path, "weight"))
    none = torch.zeros(0, dtype=torch.bool)
    if gradient is None or layer.output is None or len(seen.of(layer.path)) > 1:
        return none
    if layer.input is not None and bool(layer.input.constant.all()):
        return none
    constant = layer.output.constant
    follows = activation is not layer
    for behind in (activation.input, activation.output) if follows else ():
        same = behind is not None and behind.constant.shape == constant.shape
        is_input = behind is activation.input
        if same and behind is not None and (is_input or not activation.has_weight):
            constant = constant | behind.constant
    if constant.shape[0] != gradient.shape[0]:
        return none
    largest = gradient.abs().flatten(1).amax(1) if gradient.dim() > 1 else gradient.abs()
    return constant & (largest <= 1e-8 * largest.max()).cpu()


def _constant_share(seen: Observation, layer: Call, activation: Call) -> float:
    """Return the share of channels that are constant behind a layer in another pass."""
    behind = seen.calls[activation.order]
    signals = [seen.calls[layer.order].output, behind.output]
    if behind.path != layer.path and behind.has_weight:
        signals = [behind.input]
    size = len(layer.output.constant) if layer.output is not None else 0
    fitting = [s.constant for s in signals if s is not None and len(s.constant) == size]
    return float(torch.stack(fitting).any(0).double().mean()) if fitting else 0.0


def _fresh_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a layer with fresh weights; its bias is 0."""
    fresh: Any = copy.deepcopy(module)
    if hasattr(fresh, "reset_parameters"):
        fresh.reset_parameters()
    bias = fresh._parameters.get("bias")
    if bias is not None:
        with torch.no_grad():
            bias.zero_()
    return fresh  # type: ignore[no-any-return]


def _take_parameters(module: nn.Module, fresh: nn.Module) -> None:
    for name, value in fresh._parameters.items():
        if value is not None:
            new = value.detach()
            replace_parameter(module, name, lambda old, new=new: 0 * old + new)  # type: ignore[misc]


@check()
def constant_inputs(exam: Examination) -> Iterator[Finding]:
    """Input features or channels have the same value in all samples."""
    inputs = [each for each in _inputs(exam) if each.dim() in (2, 3, 4, 5) and len(each) > 1]
    if not inputs or exam.samples is None:
        return
    first = inputs[0]
    axis = _feature_axis(exam.observed, first)
    constant = signal_of(first, axis).constant
    share = float(constant.double().mean())
    if share < CONSTANT_INPUTS or len(constant) < 2:
        return
    kept = first.index_select(axis, (~constant).nonzero().flatten().to(first.device))
    after = signal_of(kept, axis).constant_share if kept.numel() else 0.0
    yield Finding(
        "note",  # healthy data has them: one-hot features, blank borders
        ("",),
        f"{int(constant.sum())} of {plural(len(constant), 'input feature')} have one value in all "
        f"{exam.samples} samples.",
        f"{number(100 * share)} % of the features are constant.",
        share,
        "varies = inputs.std(dim=0) > 0\ninputs = inputs[:, varies]",
        f"without them {number(100 * after)} % of {plural(int((~constant).sum()), 'feature')} are "
        "constant.",
        after,
    )


def _feature_axis(seen: Observation, inputs: Tensor) -> int:
    """Return the axis of the features: of the first layer that takes the inputs, or the usual."""
    shape = tuple(inputs.shape)
    users = [c for c in seen.weight_layers() if c.input is not None and c.input.shape == shape]
    usual = -1 if inputs.dim() == 3 else 1
    return users[0].axis if users else usual


@check()
def collapsed_outputs(exam: Examination) -> Iterator[Finding]:
    """Features are the same for all samples before the last layer: the output is a constant."""
    seen = exam.observed
    layers = seen.weight_layers()
    if len(layers) < 2 or exam.samples is None:
        return
    last, given = layers[-1], seen.calls[0].input or seen.calls[0].output
    before = _variation(last.input)
    if not before < COLLAPSED or not _variation(given) > 1e3 * COLLAPSED:
        return
    guilty = _first_collapse(seen, last)
    fresh = _fresh_copy(guilty.module)
    after = _variation(
        exam.observe(lambda model: replace_module(model, guilty.path, fresh), backward=False)
        .calls[last.order]
        .input
    )
    yield Finding(
        "error",
        (guilty.path,),
        "Behind this module the features are the same for all samples: the model returns a "
        "constant.",
        f"before the last layer the variance over samples is {before:.1g} of the mean square.",
        before,
        f"model.get_submodule({guilty.path!r}).reset_parameters()\n"
        "# if that does not help: check the scale of its input",
        f"after it the variance over samples is {after:.1g} of the mean square.",
        after,
    )


def _variation(signal: Any) -> float:
    return math.nan if signal is None else signal.variation


def _first_collapse(seen: Observation, last: Call) -> Call:
    """Return the last call before a layer whose input varies over samples, but not its output."""
    found = [
        call
        for call in seen.calls[: last.order]
        if _variation(call.output) < COLLAPSED <= _variation(call.input)
    ]
    return found[-1] if found else last


@check()
def exploding_gradients(exam: Examination) -> Iterator[Finding]:
    """The gradient grows exponentially from the last layer to the first."""
    trend = _gradient_trend(exam.observed)
    if trend is not None and trend > GROWTH:
        yield _depth_finding(exam, trend, "grows", "explode")


@check()
def vanishing_gradients(exam: Examination) -> Iterator[Finding]:
    """The gradient shrinks exponentially from the last layer to the first."""
    trend = _gradient_trend(exam.observed)
    if trend is not None and trend < 1 / GROWTH:
        yield _depth_finding(exam, trend, "shrinks", "vanish")


def _depth_finding(exam: Examination, trend: float, verb: str, name: str) -> Finding:
    layers = _gradient_layers(exam.observed)
    per_layer = trend ** (1 / (len(layers) - 1))
    after = _gradient_trend(exam.observe(_standardized(exam)), fewest_share=0.0)
    return Finding(
        "warning",
        (layers[0].path,),
        f"Gradients {name}: the gradient {verb} by a factor at each layer on its way back.",
        f"a factor of {number(per_layer, 3)} a layer, {trend:.1e} from {layers[-1].path} to "
        f"{layers[0].path}, over {len(layers)} layers.",
        trend,
        "# for each layer in order, on a batch: outputs of mean 0, variance 1\n"
        "mean, deviation = output.mean(0), output.std(0)\n"
        "layer.weight.data /= deviation[:, None]\n"
        "layer.bias.data = (layer.bias - mean) / deviation\n"
        "# or use residual connections: x = x + block(x)",
        "the trend cannot be measured after it."
        if after is None
        else f"with weights set so, a factor of {after:.1e} from the last layer to the first.",
        after,
    )


def _gradient_layers(seen: Observation) -> list[Call]:
    """Return the calls of weight layers whose output has a gradient."""
    return [call for call in seen.weight_layers() if call.gradient > 0]


def _gradient_trend(seen: Observation, fewest_share: float = STRAIGHT) -> float | None:
    """Return the factor of the gradient from the last to the first layer, by a linear fit of logs.

    None if there are few layers, or if depth explains less of the variance than this share.
    """
    layers = _gradient_layers(seen)
    if len(layers) < FEWEST_LAYERS:
        return None
    logs = np.log([call.gradient for call in layers])
    depth = np.arange(len(logs))
    slope, start = np.polyfit(depth, logs, 1)
    rest = logs - slope * depth - start
    if rest.var() > (1 - fewest_share) * logs.var():
        return None
    return float(np.exp(np.clip(-slope * depth[-1], -690, 690)))


def _standardized(exam: Examination) -> Change:
    """Return a change that sets weights so that outputs of layers have mean 0 and variance 1."""

    def change(model: nn.Module) -> None:
        axes = {call.path: call.axis for call in exam.observed.weight_layers()}
        for path, axis in axes.items():
            model.get_submodule(path).register_forward_hook(partial(_standardize, axis))

    return change


def _standardize(axis: int, module: nn.Module, args: Any, output: Any) -> Any:
    """Return an output as other weights and biases of the layer would give it."""
    if not isinstance(output, Tensor) or output.dim() < 2:
        return output
    axes = [each for each in range(output.dim()) if each != axis % output.dim()]
    deviation, mean = torch.std_mean(output.detach(), axes, keepdim=True)
    return (output - mean) / deviation.clamp(min=1e-30)
