"""``normscope doctor``: problems of a model around normalization and stability."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import load_problem, step_batch_size
from normscope.cli.render import check_file, print_result, write_then_print
from normscope.cli.sources import Source
from normscope.errors import InputError
from normscope.files import replacing
from normscope.registry import check_choice

if TYPE_CHECKING:
    from normscope.diagnosis import Diagnosis

_OPTIMIZER = "sgd, adam, adamw or rmsprop; checks its learning rate and weight decay."
_RATE = "Learning rate of the optimizer."
Optimizer = Annotated[
    str | None,
    opt.option("NAME", _OPTIMIZER, choices=opt.OPTIMIZERS, default="none", group=opt.TRAINING),
]
Rate = Annotated[float | None, opt.number(_RATE, default="the optimizer's", group=opt.TRAINING)]
Decay = Annotated[float | None, opt.number(opt.DECAY, min=0, default="its", group=opt.TRAINING)]
Deep = Annotated[bool, opt.flag("--deep", "Make trial runs of up to 60 steps too.")]
Strict = Annotated[
    bool, opt.flag("--strict", "Exit with 1 if a finding is above a note.", group=opt.OUTPUT)
]
Sarif = Annotated[
    Path | None,
    opt.option("FILE", "Write the findings in SARIF, for code hosts.", "--sarif", group=opt.OUTPUT),
]
Page = Annotated[
    Path | None,
    opt.option("FILE", "Write the findings as an HTML page.", "--out", "-o", group=opt.OUTPUT),
]


@command("doctor", "Problems around normalization, with evidence and fixes.", own="Checks")
def doctor(
    model: opt.Model,
    data: opt.Data,
    loss: opt.Loss = "cross_entropy",
    optimizer: Optimizer = None,
    lr: Rate = None,
    momentum: opt.Momentum = 0.0,
    weight_decay: Decay = None,
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    deep: Deep = False,
    strict: Strict = False,
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
    sarif: Sarif = None,
    out: Page = None,
) -> None:
    """Find problems of a model around normalization and stability, measured on copies.

    Each finding has its module, a number that was measured, the fix as code and the number after
    the fix. The model is not changed. Takes fewer than 20 passes, more if several problems are
    found and their fixes measured; --deep makes trial runs too.

    Example: normscope doctor examples/faulty_model.py:build --data examples/faulty_model.py:samples
    """
    source = Source(model, data, loss)
    sources.check_names(*source, norm)
    check_optimizer(optimizer, lr, momentum, weight_decay)
    for file, what in ((sarif, "doctor.sarif"), (out, "doctor.html")):
        if file is not None:
            check_file(file, "diagnosis", what)
    problem, samples = load_problem(source, norm, option, seed, device)
    size = step_batch_size(samples, batch_size)
    given = {"batch_size": size, "deep": deep, "seed": seed}
    given["optimizer"] = sources.optimizer_factory(optimizer, lr, momentum, weight_decay)
    from normscope.diagnosis import doctor as examine

    found = sources.call_with_progress("doctor", source, examine, *problem, **given)
    with write_then_print(partial(_write, found, source, sarif, out)):
        batches = "" if size is None else f", batches of {size}"
        print_result(found, source, None, as_json, f"Examined: {source}{batches}.")
    if strict and not found.is_healthy:
        raise typer.Exit(1)


def _write(found: Diagnosis, source: Source, sarif: Path | None, out: Path | None) -> None:
    """Write the files that are asked for."""
    from normscope.diagnosis.sarif import sarif_log

    if sarif is not None:
        file, is_file, _ = source.model.partition(".py:")
        log = sarif_log(found, f"{file}.py" if is_file else None)
        with replacing(sarif) as unfinished:
            unfinished.write_text(json.dumps(log, indent=2, allow_nan=False), encoding="utf-8")
    if out is not None:
        found.report(out, f"Diagnosis of {source}")


def check_optimizer(
    name: str | None, lr: float | None, momentum: float, weight_decay: float | None
) -> None:
    """Raise an error for an unknown optimizer, or for options without one, before torch is loaded.

    Args:
        name: what was given.
        lr: its learning rate.
        momentum: of SGD.
        weight_decay: of any.

    Raises:
        UnknownNameError: if it is not one of `opt.OPTIMIZERS`.
        InputError: if an option does not fit.
    """
    for option, value in (("--lr", lr), ("--weight-decay", weight_decay)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{option} must be a finite number from 0 on, got {value}.")
    if name is None:
        used = {"--lr": lr is not None, "--momentum": momentum, "--weight-decay": weight_decay}
        given = [option for option, value in used.items() if value]
        if given:
            raise InputError(f"{given[0]} is of an optimizer; name it too: --optimizer sgd.")
        return
    check_choice("optimizer", name, opt.OPTIMIZERS)
    if name == "sgd" and lr is None:
        raise InputError("sgd needs a learning rate; give --lr, such as --lr 0.1.")
    if momentum and name != "sgd":
        raise InputError(f"--momentum is an option of sgd, and --optimizer is {name}.")
