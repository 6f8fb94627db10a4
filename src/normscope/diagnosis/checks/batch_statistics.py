"""Checks of batch norm: too few samples, statistics that do not fit, layers in the wrong mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnosis.examination import Change, Examination, parameter_name, replace_module
from normscope.diagnosis.observation import Call, Observation
from normscope.diagnosis.registry import check
from normscope.diagnosis.results import Finding, listed
from normscope.errors import NormscopeError, StateError
from normscope.layers.population import population_statistics
from normscope.layers.surgery.convert import convert
from normscope.problem.batch import rows, split_batch
from normscope.text import format_number as number
from normscope.text import plural

COMPOSITION_NOISE = 0.5
"""Change of the outputs by other batch companions, in their spread over samples, to warn of."""
FEW_VALUES = 128
"""Values per channel from which on batch statistics are precise enough to measure nothing."""
STALE_DISTANCE = 0.5
"""Distance of running from batch statistics (see `_distance`) that counts as not fitting."""
STALE_GAP = 0.3
"""Relative error of the outputs that fitting statistics remove, from which on to warn."""
STALE_NOTE = 0.1
"""The same, from which on to note."""
TRACKED = 50
"""Batches in the running statistics below which they are still being collected."""


def _distance(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> float:
    """Return how far statistics are from others, over the channels: 0 if they are the same.

    The root mean square of the means' difference in standard deviations, plus the mean absolute
    logarithm of the variances' ratio.
    """
    kept = other_variance > 1e-10 * other_variance.max()  # not of constant channels
    if not kept.any():
        return 0.0
    mean, variance, other_mean, other_variance = (
        each.double()[kept] for each in (mean, variance, other_mean, other_variance)
    )
    shift = ((mean - other_mean).square() / other_variance).mean().sqrt()
    scale = (variance.clamp(min=1e-30) / other_variance).log().abs().mean()
    return float(shift + scale)


def _running(exam: Examination, path: str) -> tuple[Tensor, Tensor]:
    """Return running mean and variance of a layer."""
    names = (parameter_name(path, name) for name in ("running_mean", "running_var"))
    mean, variance = (exam.original(name) for name in names)
    return mean, variance


def _tracking(exam: Examination) -> dict[str, Any]:
    """Return the batch norm layers that keep running statistics."""
    found: dict[str, Any] = exam.batch_norms
    return {path: each for path, each in found.items() if each.running_mean is not None}


@check()
def few_samples(exam: Examination) -> Iterator[Finding]:
    """Batch statistics come from so few samples that outputs depend on the batch companions."""
    trained = {path for path, each in exam.batch_norms.items() if each.training}
    calls = [c for c in exam.observed.calls if c.path in trained and c.statistics is not None]
    if not calls or exam.samples is None:
        return
    fewest = min(calls, key=_values_per_channel)
    if exam.samples * len(exam.batches) < 2:
        yield _one_sample(calls, fewest)
        return
    if _values_per_channel(fewest) >= FEW_VALUES and exam.samples > 4:
        return
    noise = _composition_noise(exam)
    if noise < COMPOSITION_NOISE:
        return
    after = _converted_noise(exam)
    if after is not None and after > noise / 2:
        return  # something else makes the outputs vary
    yield Finding(
        "warning",
        _fewest_first(calls),
        f"Batch norm takes its statistics from {plural(exam.samples, 'sample')}, in this layer "
        f"{_values_per_channel(fewest)} values per channel.",
        f"with other samples in its batch, the output of a sample changes by {number(noise)} "
        "times the outputs' spread over samples.",
        noise,
        'model = ns.layers.convert(model, to="group")  # or use larger batches',
        "the layers cannot be converted; use larger batches."
        if after is None
        else f"with group norm it changes by {number(after)} times the spread.",
        after,
    )


def _one_sample(calls: list[Call], fewest: Call) -> Finding:
    """Return the finding of one sample alone, which shows no change by batch companions."""
    values = _values_per_channel(fewest)
    return Finding(
        "warning",
        _fewest_first(calls),
        "Batch norm takes its statistics from 1 sample: it normalizes each sample by its own in "
        "training, and by the running statistics of all in eval mode.",
        f"{plural(values, 'value')} per channel, of one sample.",
        values,
        'model = ns.layers.convert(model, to="group")  # or use larger batches',
        "not measured: the data has no second sample.",
    )


def _fewest_first(calls: list[Call]) -> tuple[str, ...]:
    """Return the layers, those with the fewest values per channel first."""
    return tuple(dict.fromkeys(c.path for c in sorted(calls, key=_values_per_channel)))


def _values_per_channel(call: Call) -> int:
    shape = call.input.shape if call.input is not None else (1, 1)
    return torch.Size(shape).numel() // shape[1]


def _composition_noise(exam: Examination, change: Change | None = None) -> float:
    """Return the change of the outputs by batch companions, in their spread over samples.

    Outputs in the batches as given are compared with those after two batches exchanged half of
    their samples, whose difference has twice the variance; or, of one batch, with those in its
    halves, whose statistics differ from the whole's by the variance of a whole batch; or, of single
    samples, with those in a batch of both, whose difference has half the variance.
    """
    flags = exam.quiet_flags()
    whole = torch.cat([_flat(exam, each, change, flags) for each in exam.batches])
    count, single = len(whole), exam.samples == 1
    every = torch.arange(count, device=whole.device)
    order = torch.cat([every[0::2], every[1::2]])
    parts = split_batch(rows(exam.pool(), order), count if single else -(-count // 2))
    mixed = torch.cat([_flat(exam, each, change, flags) for each in parts])
    factor = 0.5 if single else float(len(exam.batches))
    difference = (mixed - whole[order]).square().mean() / factor
    return float((difference / whole.var(dim=0, correction=0).mean().clamp(min=1e-300)).sqrt())


def _flat(exam: Examination, batch: Any, change: Change | None, flags: dict[str, bool]) -> Tensor:
    output = exam.forward(change, flags, batch).output
    if output is None or output.dim() == 0 or exam.samples is None:
        raise StateError("the model returns no tensor with a row for each sample.")
    return output.double().flatten(1) if output.dim() > 1 else output.double()[:, None]


def _converted_noise(exam: Examination) -> float | None:
    """Return the noise with group norm in place of batch norm; None if it cannot be converted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = convert(exam.model, to="group")
        new = {path: converted.get_submodule(path) for path in exam.batch_norms}
    except (NormscopeError, AttributeError):
        return None

    def use_group_norm(model: nn.Module) -> None:
        for path, layer in new.items():
            replace_module(model, path, layer)

    return _composition_noise(exam, use_group_norm)


@check()
def stale_statistics(exam: Examination) -> Iterator[Finding]:
    """Running statistics do not fit the data: stale, of other weights, or by a wrong momentum."""
    layers = _tracking(exam)
    in_use = not any(module.training for module in exam.model.modules())
    counts = {path: _batches_tracked(layer) for path, layer in layers.items()}
    judged = {path for path in layers if in_use or counts[path] > 0}
    if not judged:
        return
    fitted: dict[str, Any] = {}
    with_batch = exam.forward(flags=exam.eval_flags | dict.fromkeys(layers, True))
    running = exam.in_eval_mode
    population = exam.forward(_fit(exam, fitted), exam.eval_flags)
    found = {p: _distance(*_running(exam, p), *fitted[p]) for p in judged if p in fitted}
    stale = [p for p in sorted(found, key=lambda p: -found[p]) if found[p] > STALE_DISTANCE]
    before, after = (_gap(each, with_batch) for each in (running, population))
    if not stale or before - after < STALE_NOTE:
        return
    worst = stale[0]
    is_filling = not in_use and counts[worst] < TRACKED
    yield Finding(
        "note" if is_filling or before - after < STALE_GAP else "warning",
        tuple(stale),
        f"The running statistics do not fit the data. {_cause(layers[worst], counts[worst])}",
        f"outputs in eval mode are {number(100 * before)} % off those with batch statistics (loss "
        f"{number(running.loss, 3)}); distance {number(found[worst])} in {worst} (0: fits).",
        before,
        "ns.layers.population_statistics(model, data)",
        f"outputs are {number(100 * after)} % off (loss {number(population.loss, 3)}).",
        after,
    )


def _cause(layer: Any, count: float) -> str:
    """Return why running statistics may not fit."""
    left = 0.0 if layer.momentum is None else (1 - layer.momentum) ** count
    if left < 0.05:
        return "They are of other data or other weights, such as averaged ones."
    return (
        f"After {plural(int(count), 'batch', 'batches')} with momentum {layer.momentum} the "
        f"initial values still weigh {number(100 * left)} %."
    )


def _gap(one: Observation, other: Observation) -> float:
    """Return the relative difference of two outputs."""
    if one.output is None or other.output is None:
        raise StateError("the model's output is not known.")
    difference = (one.output - other.output).double().norm()
    return float(difference / other.output.double().norm().clamp(min=1e-30))


def _batches_tracked(layer: Any) -> float:
    count = getattr(layer, "num_batches_tracked", None)
    return float("inf") if count is None else float(count)


def _fit(exam: Examination, fitted: dict[str, Any]) -> Change:
    """Return a change that sets population statistics, and adds them to a dictionary."""

    def fit(model: nn.Module) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted.update(population_statistics(model, exam.batches))
        exam.passes += len(exam.batches)

    return fit


@check()
def frozen_norm_updates(exam: Examination) -> Iterator[Finding]:
    """Batch norm still updates or learns in a part of the model that is frozen."""
    found: list[Call] = []
    for call in exam.observed.calls:
        layer: Any = call.module
        updates = call.path in exam.batch_norms and layer.training
        if updates and not call.input_is_trained and _follows_frozen(exam, call):
            found.append(call)
    paths = tuple(dict.fromkeys(call.path for call in found if call.path in _tracking(exam)))
    if not paths:
        return
    before = _drift(exam, paths, {})
    after = _drift(exam, paths, dict.fromkeys(paths, False))
    layers = [exam.batch_norms[path] for path in paths]
    learns = any(p.requires_grad for layer in layers for p in layer.parameters())
    learning = " and its scale and shift are trained" if learns else ""
    freeze = "\n    norm.requires_grad_(False)" if learns else ""
    yield Finding(
        "warning",
        paths,
        f"The layers before are frozen, but batch norm is in train mode{learning}: its running "
        "statistics move.",
        f"one batch moves the running means by {number(before)} standard deviations.",
        before,
        f"for name in {listed(paths)}:  # after each model.train()\n"
        f"    norm = model.get_submodule(name).eval(){freeze}",
        f"one batch moves them by {number(after)}.",
        after,
    )


def _follows_frozen(exam: Examination, call: Call) -> bool:
    """Return whether a layer with frozen weights ran before, and none that is trained."""
    before = exam.observed.calls[: call.order]
    weights = [p for each in before if each.path not in exam.norms for p in _own(each.module)]
    return bool(weights) and not any(p.requires_grad for p in weights)


def _own(module: nn.Module) -> list[Tensor]:
    return [p for p in module._parameters.values() if p is not None]


def _drift(exam: Examination, paths: tuple[str, ...], flags: dict[str, bool]) -> float:
    """Return the change of the running means by one pass, in standard deviations."""
    flags = exam.quiet_flags(**flags)
    after = exam.forward(flags=flags, batch=exam.batches[-1]).buffers
    changes = []
    for path in paths:
        mean, variance = _running(exam, path)
        moved = after[parameter_name(path, "running_mean")] - mean
        changes.append((moved.double().square() / variance.double().clamp(min=1e-30)).mean())
    return float(torch.stack(changes).mean().sqrt())


@check()
def norm_in_eval(exam: Examination) -> Iterator[Finding]:
    """Batch norm is in eval mode while the layers before it are trained."""
    if not exam.model.training:
        return
    calls = [
        call
        for call in exam.observed.calls
        if call.path in _tracking(exam) and not call.module.training and call.input_is_trained
    ]
    if not calls:
        return
    distances = {c.path: _fit_of(exam, c) for c in calls if c.statistics is not None}
    paths = tuple(sorted(distances, key=lambda path: -distances[path]))
    if not paths:
        return
    worst = distances[paths[0]]
    in_train = exam.quiet_flags(**dict.fromkeys(paths, True))
    before, after = exam.quiet_loss, exam.loss(flags=in_train)
    distance, ends = None, _ends(exam)
    if ends is not None:
        uses = (_uses(exam.observe(None, in_train, False, each), paths[0])[0] for each in ends)
        distance = _distance(*next(uses), *next(uses))
    known = "" if distance is None else f"statistics of two batches are {number(distance)} apart; "
    yield Finding(
        "warning" if worst > STALE_DISTANCE else "note",
        paths,
        "Batch norm normalizes by its running statistics while the weights before it are trained: "
        "it will not follow them.",
        f"running statistics are at a distance of {number(worst)} from those of the batch (0: the "
        f"same); loss {number(before, 3)}.",
        worst,
        f"for name in {listed(paths)}:\n    model.get_submodule(name).train()",
        f"{known}loss {number(after, 3)}.",
        distance,
    )


def _ends(exam: Examination) -> tuple[Any, Any] | None:
    """Return the first and the last batch; the halves of a single one; None if it has none."""
    if len(exam.batches) > 1:
        return exam.batches[0], exam.batches[-1]
    if exam.samples is None or exam.samples < 4:
        return None
    first, last = split_batch(exam.batch, -(-exam.samples // 2))
    return first, last


def _fit_of(exam: Examination, call: Call) -> float:
    if call.statistics is None:
        return 0.0
    return _distance(*_running(exam, call.path), call.statistics.mean, call.statistics.spread)


@check()
def shared_statistics(exam: Examination) -> Iterator[Finding]:
    """One batch norm layer is used several times on inputs with different statistics."""
    several = [path for path in _tracking(exam) if len(_uses(exam.observed, path)) > 1]
    if not several:
        return
    ends = _ends(exam)
    if ends is None:
        raise StateError("statistics of each use take a second batch, or one of 4 samples.")
    seen = {id(exam.batch): exam.observed}
    first, last = (seen.get(id(b)) or exam.observe(backward=False, batch=b) for b in ends)
    for path in several:
        own, others = _uses(first, path), _uses(last, path)
        if not own or not others:  # a use may depend on the batch
            continue
        count = len(_uses(exam.observed, path))
        pooled = tuple(torch.stack(each).mean(0) for each in zip(*own, strict=True))
        before = max(_distance(pooled[0], pooled[1], *use) for use in others)
        after = max(_distance(*use, *other) for use, other in zip(own, others, strict=False))
        if before < STALE_DISTANCE or after > before / 2:
            continue
        yield Finding(
            "warning",
            (path,),
            f"The layer is called {count} times in a forward pass and keeps one set of running "
            "statistics for inputs that differ.",
            f"its statistics are at a distance of {number(before)} from those of a use (0: the "
            "same).",
            before,
            f"norm = model.get_submodule({path!r})\n"
            f"norms = nn.ModuleList(copy.deepcopy(norm) for _ in range({count}))\n"
            "# in forward, one for each use",
            f"statistics for each use are at a distance of {number(after)}, on other samples.",
            after,
        )


def _uses(seen: Observation, path: str) -> list[tuple[Tensor, Tensor]]:
    """Return the batch statistics of each use of a layer."""
    found = (call.statistics for call in seen.of(path))
    return [(each.mean, each.spread) for each in found if each is not None]
