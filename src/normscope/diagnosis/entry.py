"""`doctor`: problems of a model around normalization and stability, measured on copies."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from normscope.diagnosis.examination import Examination
from normscope.diagnosis.registry import CHECKS, Check
from normscope.diagnosis.results import SEVERITIES, Diagnosis, Finding
from normscope.errors import InputError, NormscopeError
from normscope.interrupts import interrupt_safe
from normscope.problem.batch import Batch, has_samples, random_rows, sample_count, split_batch
from normscope.problem.isolation import RandomGenerators
from normscope.problem.problem import Data, Problem
from normscope.problem.sharded import gather_shards
from normscope.progress import Progress, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.training.optimizers import bind_optimizer
from normscope.validation import as_seed, check_bool, check_integer

if TYPE_CHECKING:
    from normscope.problem.loss import Loss, WholeLoss
    from normscope.training.optimizers import OptimizerFactory

_BATCHES = 2


@interrupt_safe
@shows_progress("doctor")
@gather_shards
def doctor(
    model: nn.Module,
    loss: Loss | WholeLoss | str | None,
    data: Data,
    optimizer: OptimizerFactory | Optimizer | None = None,
    *,
    batch_size: int | None = None,
    deep: bool = False,
    checks: Iterable[str] | None = None,
    seed: int = 0,
    progress: ProgressOption = None,
) -> Diagnosis:
    """Find problems of a model around normalization and stability, each with measured evidence.

    The model runs on at most two batches of the data, with the flags of its modules, on copies of
    its values: parameters, gradients, buffers, flags, hooks and random numbers stay as they are.
    By default that takes fewer than 20 passes, forward or forward-backward; with several problems
    at once more, since every fix is measured.

    Args:
        model: as its training starts, or a trained one; in train mode unless it is to be judged
            as it is used for inference.
        loss: as `normscope.Problem` takes it.
        data: as `normscope.Problem` takes it, in batches of the training's size.
        optimizer: of the model, or a factory of one; without it, what concerns the learning rate
            and weight decay is not checked.
        batch_size: samples in a batch, drawn from data that is one batch; None: as given.
        deep: whether to make trial runs of up to 60 steps too.
        checks: one or several names of `normscope.diagnosis.CHECKS`; None for all.
        seed: of the choice of samples, dropout and noise.
        progress: called with `normscope.progress.Progress` events.

    Returns:
        The findings, the most severe first.

    Raises:
        InputError: if the batch size does not fit the data.
        UnknownNameError: if there is no such check.
        StateError: if the model cannot run on the data.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        >>> x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        >>> [finding.name for finding in doctor(net, "squared_error", (x, x[:, :2]))]
        ['bias_before_norm']
    """
    seed = as_seed(seed)
    check_bool("deep", deep)
    names = [checks] if isinstance(checks, str) else checks
    chosen = {name: CHECKS[name] for name in (CHECKS if names is None else names)}
    started, report = time.perf_counter(), callback_of(progress)
    problem = Problem(model, loss, data)
    used = None if optimizer is None else bind_optimizer(optimizer, model)
    batches = _choose_batches(problem, batch_size, seed)
    exam = Examination(problem, batches, used, seed, deep)
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    with RandomGenerators(model).preserved(seed), torch.inference_mode(False), torch.enable_grad():
        for done, (name, check) in enumerate(chosen.items()):
            report(Progress(name.replace("_", " "), done=done, total=len(chosen), unit="checks"))
            reason = _reason_against(check, exam)
            if reason is None:
                reason = _run_check(name, check, exam, findings)
            if reason:
                skipped[name] = reason
    findings.sort(key=lambda each: SEVERITIES.index(each.severity))
    seconds = time.perf_counter() - started
    return Diagnosis(tuple(findings), tuple(chosen), skipped, exam.passes, seconds)


def _choose_batches(problem: Problem, batch_size: int | None, seed: int) -> list[Batch]:
    """Return the first two batches, or two random ones of a size; one if there is no more."""
    if batch_size is None:
        generators = RandomGenerators(problem.device, problem.data)
        with generators.preserved(seed):  # a DataLoader may shuffle
            return list(islice(problem.batches(), _BATCHES))
    check_integer("batch_size", batch_size)
    if not problem.is_one_batch or not has_samples(problem.data):
        raise InputError(
            "batch_size draws samples of data that is one batch, and this data comes in batches of "
            "its own; leave batch_size out."
        )
    samples = sample_count(problem.data)
    if not 1 <= batch_size <= samples:
        raise InputError(f"batch_size must be from 1 to the {samples} samples, got {batch_size}.")
    count = min(_BATCHES, samples // batch_size)
    generator = torch.Generator().manual_seed(seed)
    drawn = random_rows(problem.data, count * batch_size, generator)
    return [problem.prepare(each) for each in split_batch(drawn, batch_size)]


def _reason_against(check: Check, exam: Examination) -> str | None:
    """Return why a check is left out; "" for no reason worth telling; None to make it."""
    if check.needs_optimizer and exam.optimizer is None:
        return ""
    if check.needs_finite and exam.observed.non_finite is not None:
        return "since values are not finite."
    return None


def _run_check(name: str, check: Check, exam: Examination, findings: list[Finding]) -> str:
    """Add the findings of a check; return why it could not be made, or ""."""
    before = len(findings)
    try:
        findings += [replace(each, name=name) for each in check(exam)]
    except NormscopeError as error:  # such as of a model in a mode that it is not used in
        del findings[before:]
        return f"since {error}"
    except Exception as error:  # one check must not hide what the others found
        del findings[before:]
        return f"since the check failed with {type(error).__name__}: {error}"
    return ""
