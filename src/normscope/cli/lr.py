"""``normscope lr``: how large a learning rate a model can take."""

from __future__ import annotations

from typing import Any

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import load_problem, step_batch_size
from normscope.cli.render import (
    check_figure,
    describe_parameters,
    draw_then_print,
    print_result,
)
from normscope.cli.sources import Source
from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.text import join_words


@command("lr", "How large a learning rate a model can take, and why.", own="Search")
def lr(
    model: opt.Model,
    data: opt.Data,
    loss: opt.Loss = "cross_entropy",
    momentum: opt.Momentum = 0.0,
    nesterov: opt.Nesterov = False,
    weight_decay: opt.WeightDecay = None,
    optimizer: opt.OptimizerName = "sgd",
    norm: opt.Norm = None,
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    clip_norm: opt.ClipNorm = None,
    accumulate: opt.Accumulate = 1,
    no_verify: opt.NoVerify = False,
    effort: opt.EffortName = "default",
    objective: opt.Objective = None,
    explain: opt.Explain = False,
    mode: opt.Mode = "as_is",
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
    out: opt.Figure = None,
) -> None:
    """Find how large a learning rate a model can take, verified by short runs.

    The recommended rate is near the best of a few below the limit, or half the limit. The limit is
    where training becomes unstable: within 100 steps the loss is not finite or exceeds 1.5 times
    its first value (3 times for the squared error; with Adam and similar optimizers a loss that
    comes back is stable). The default loss is cross_entropy, which classifiers are trained with.
    normscope sweep has squared_error, as in wei2018, and counts a training as diverged only beyond
    1000 times its first loss.

    Example: normscope lr examples/my_model.py:build --data examples/my_model.py:samples
    """
    source = Source(model, data, loss)
    sources.check_names(*source, norm)
    rule = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    check_optimizer(optimizer, rule)
    check_choice("mode", mode, opt.MODES)
    check_choice("effort", effort, opt.EFFORTS)
    if objective is not None:
        check_choice("objective", objective, opt.OBJECTIVES)
    check_figure(out)
    problem, samples = load_problem(source, norm, option, seed, device)
    given = advice_options(samples, rule, optimizer, batch_size, no_verify, mode, seed)
    given |= {"effort": effort, "objective": objective}
    given |= {"clip_norm": clip_norm, "accumulate": accumulate}
    from normscope.learning_rate import max_learning_rate

    advice = sources.call_with_progress(
        "learning rate", source, max_learning_rate, *problem, **given
    )
    measured = f"{source}, batches of {advice.batch_size}"
    note = f"Measured: {measured}, {describe_parameters(problem[0])}."
    if explain:
        other = "too" if loss == "squared_error" else "instead"
        note += f" normscope theory is about half the squared error {other}."
    with draw_then_print(out, advice.plot, measured) as figure:
        text = advice.details if explain else advice.text
        print_result(advice, source, figure, as_json, note, text)


def advice_options(
    samples: Any,
    rule: dict[str, Any],
    optimizer: str,
    batch_size: int | None,
    no_verify: bool,
    mode: str,
    seed: int,
) -> dict[str, Any]:
    """Return the arguments that `max_learning_rate` and `compare` have in common.

    Args:
        samples: the data.
        rule: momentum and nesterov of SGD, and weight_decay of any; None for its default.
        optimizer: its name.
        batch_size: samples per step; None for the default.
        no_verify: whether short runs are left out.
        mode: how batch statistics are treated.
        seed: of everything random.
    """
    decay = rule["weight_decay"]
    is_sgd = optimizer == "sgd"
    return {
        **rule,
        "weight_decay": (decay or 0.0) if is_sgd else 0.0,
        "verify": not no_verify,
        "optimizer": None
        if is_sgd
        else sources.optimizer_factory(optimizer, 1e-3, weight_decay=decay),
        "batch_size": step_batch_size(samples, batch_size),
        "mode": mode,
        "seed": seed,
    }


def check_optimizer(name: str, rule: dict[str, Any]) -> None:
    """Raise an error for an unknown optimizer, or for options of SGD with another one.

    Args:
        name: what was given.
        rule: momentum and nesterov of SGD, and weight_decay of any.

    Raises:
        UnknownNameError: if it is not one of `opt.OPTIMIZERS`.
        InputError: if options of SGD are given with another.
    """
    check_choice("optimizer", name, opt.OPTIMIZERS)
    given = [f"--{option.replace('_', '-')}" for option, value in rule.items() if value]
    given = [option for option in given if option != "--weight-decay"]
    if given and name != "sgd":
        are, them = ("are options", "them") if len(given) > 1 else ("is an option", "it")
        raise InputError(
            f"{join_words(given)} {are} of sgd, and --optimizer is {name}; leave {them} out."
        )
