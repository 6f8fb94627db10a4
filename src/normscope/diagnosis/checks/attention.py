"""Check of attention: logits so large that every query attends to one key alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnosis.attention import AttentionRecorder, Logits
from normscope.diagnosis.checks.training import DEEP_STEPS, trial_run
from normscope.diagnosis.examination import Change, Examination, replace_parameter
from normscope.diagnosis.observation import Observation
from normscope.diagnosis.registry import check
from normscope.diagnosis.results import Finding
from normscope.text import format_number as number

LARGE_LOGIT = 30.0
"""Logit above the mean of its row from which on to look at the entropy."""
LOW_ENTROPY = 0.2
"""Entropy of the weights, in that of equal ones, below which attention is saturated."""
FAST_GROWTH = 4.0
"""Factor by which a logit grows in a trial run from which on to warn, if it is then above ..."""
GROWN_LOGIT = 10.0
"""... this, above the mean of its row."""
_CAP = 10.0
_SLOWER = 8  # divisor of the rate that is tried as a fix


@check()
def saturated_attention(exam: Examination) -> Iterator[Finding]:
    """Attention logits are so large that a query attends to one key and gradients vanish."""
    found = [each for each in exam.observed.attention if _is_saturated(each)]
    if not found:
        return
    worst = max(found, key=lambda each: each.largest)
    after = _entropy(exam.observe(_capped(exam), backward=False), worst.path)
    yield Finding(
        "warning",
        tuple(dict.fromkeys(each.path for each in sorted(found, key=lambda one: -one.largest))),
        f"A logit is {number(worst.largest)} above the mean of its row: attention is one-hot, and "
        "its gradient vanishes.",
        f"the entropy of the weights is {number(worst.entropy)} of that of equal weights.",
        worst.entropy,
        "query = F.rms_norm(query, query.shape[-1:])\n"
        "key = F.rms_norm(key, key.shape[-1:])\n"
        "# or smaller weights of the projections",
        f"with logits scaled to at most {number(_CAP)}, the entropy is {number(after)}.",
        after,
    )


@check(needs_optimizer=True)
def growing_attention(exam: Examination) -> Iterator[Finding]:
    """Attention logits grow within a trial run; only with ``deep``."""
    if not exam.deep or not exam.observed.attention:
        return
    before = _largest(exam.observed)
    growth = _growth(before, trial_run(exam, 1.0).end)
    paths = [p for p in growth if growth[p] > FAST_GROWTH and growth[p] * before[p] > GROWN_LOGIT]
    if not paths:
        return
    worst = max(paths, key=lambda path: growth[path])
    after = _growth(before, trial_run(exam, 1 / _SLOWER).end).get(worst)
    grown = growth[worst] * before[worst]
    yield Finding(
        "warning",
        tuple(sorted(paths, key=lambda path: -growth[path])),
        f"Attention logits grow: the largest is {number(before[worst])} above the mean of its row "
        f"at the start and {number(grown)} after {DEEP_STEPS} steps.",
        f"they grow by a factor of {number(growth[worst])}.",
        growth[worst],
        "query = F.rms_norm(query, query.shape[-1:])\n"
        "key = F.rms_norm(key, key.shape[-1:])\n"
        "# or a lower learning rate",
        "the run at a lower rate was unstable."
        if after is None
        else f"at an eighth of the rate they grow by {number(after)}.",
        after,
    )


def _largest(seen: Observation) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in seen.attention:
        found[each.path] = max(found.get(each.path, 0.0), each.largest)
    return found


def _growth(before: dict[str, float], end: Observation | None) -> dict[str, float]:
    """Return the factor by which the largest logit of each attention grew."""
    after = {} if end is None else _largest(end)
    return {p: after[p] / before[p] for p in before if before[p] > 0 and p in after}


def _is_saturated(logits: Logits) -> bool:
    return logits.largest > LARGE_LOGIT and logits.entropy < LOW_ENTROPY


def _entropy(seen: Observation, path: str) -> float:
    return min((each.entropy for each in seen.attention if each.path == path), default=math.nan)


def _capped(exam: Examination) -> Change:
    """Return a change that scales queries and keys so that no logit is above a cap."""
    factors = {
        each.path: math.sqrt(_CAP / each.largest)
        for each in sorted(exam.observed.attention, key=lambda one: one.largest)
        if each.largest > _CAP
    }

    def change(model: nn.Module) -> None:
        for path, factor in factors.items():
            module: Any = model.get_submodule(path)
            if isinstance(module, nn.MultiheadAttention):
                _scale_projection(module, factor)
            else:
                _scale_logits(module, factor**2)

    return change


def _scale_projection(module: nn.MultiheadAttention, factor: float) -> None:
    size = module.embed_dim

    def scale(value: Tensor) -> Tensor:
        return torch.cat([factor * value[: 2 * size], value[2 * size :]])

    for name in ("in_proj_weight", "in_proj_bias"):
        replace_parameter(module, name, scale)


def _scale_logits(module: nn.Module, factor: float) -> None:
    """Let a module's attention use scaled logits."""
    forward = module.forward

    def scaled(*args: Any, **named: Any) -> Any:
        with AttentionRecorder([], lambda logits: factor * logits):
            return forward(*args, **named)

    module.__dict__["forward"] = scaled
