"""``normscope compare``: the same model under several normalizations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from normscope.cli import options as opt
from normscope.cli import sources
from normscope.cli.app import command
from normscope.cli.batches import load_problem
from normscope.cli.lr import advice_options, check_optimizer
from normscope.cli.render import (
    check_figure,
    describe_parameters,
    print_result,
    save_figure,
    write_then_print,
)
from normscope.cli.sources import Source
from normscope.errors import InputError
from normscope.registry import check_choice

if TYPE_CHECKING:
    from torch import nn

    from normscope.learning_rate import Comparison

_NORMS = (
    "Kinds of normalization, separated by commas; see normscope list norms. By default "
    "none,batch,layer; for norm layers over tokens none,layer,rms,dyt."
)
_STEPS = "Steps of the training at half the limit, also with --no-verify."
Norms = Annotated[str | None, opt.option("NORMS", _NORMS, "--norms")]
Steps = Annotated[int, opt.number(_STEPS, min=1)]

_VERIFIED = """\
curvature bound: 2 (1 + momentum) / lambda_max, lowered if a run failed below it.
limit: where training became unstable in short runs."""
_PREDICTED = """\
curvature bound: 2 (1 + momentum) / lambda_max, the largest rate that the curvature allows.
limit: where training is expected to become unstable; no run has verified it."""
_LEGEND = """\
predicted: the limit as predicted before any run.
λ: largest eigenvalue of the loss's Gauss-Newton matrix at the start, with batch statistics as in \
training (train), held constant (frozen), or running averages (eval). The curvature bound also \
counts the first steps, where curvature may be larger.
growth: factor by which the squared gradient grows per layer, backwards."""


@command("compare", "One model under several normalizations, side by side.", own="Comparison")
def compare(
    model: opt.Model,
    data: opt.Data,
    norms: Norms = None,
    loss: opt.Loss = "cross_entropy",
    momentum: opt.Momentum = 0.0,
    nesterov: opt.Nesterov = False,
    weight_decay: opt.WeightDecay = None,
    optimizer: opt.OptimizerName = "sgd",
    option: opt.ModelOptions = None,
    batch_size: opt.BatchSize = None,
    steps: Steps = 200,
    no_verify: opt.NoVerify = False,
    mode: opt.Mode = "as_is",
    device: opt.Device = None,
    seed: opt.Seed = 0,
    as_json: opt.Json = False,
    out: opt.Figure = None,
) -> None:
    """Compare limits, curvature and training of one model under several normalizations.

    Example: normscope compare fully_connected --data digits --norms none,batch,layer
    """
    kinds = None if norms is None else [each for part in norms.split(",") if (each := part.strip())]
    source = Source(model, data, loss)
    sources.check_names(*source, *(kinds or ()))
    rule = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    check_optimizer(optimizer, rule)
    check_choice("mode", mode, opt.MODES)
    check_figure(out)
    problem, samples = load_problem(source, None, option, seed, device)
    given = advice_options(samples, rule, optimizer, batch_size, no_verify, mode, seed)
    comparison = _compare(source, problem, {**given, "norms": kinds, "steps": steps})
    legend = _legend(comparison, source, problem[0], not no_verify)

    def draw() -> Any:
        return None if out is None else save_figure(comparison.plot(), out)

    with write_then_print(draw) as figure:
        print_result(comparison, source, figure, as_json, legend)


def _compare(source: Source, problem: tuple[Any, ...], given: dict[str, Any]) -> Comparison:
    from normscope.learning_rate import compare as compare_norms
    from normscope.learning_rate.compare_norms import UnfitNormError

    try:
        return sources.call_with_progress("compare", source, compare_norms, *problem, **given)
    except UnfitNormError as error:  # name the option, not the argument
        option = f"--norms {','.join(error.fitting)}"
        raise InputError(str(error).replace(f"norms={error.fitting}", option)) from error


def _legend(comparison: Comparison, source: Source, network: nn.Module, verified: bool) -> str:
    """Return what the columns are, and what was compared."""
    from normscope.learning_rate.comparison import AVERAGED

    advice = comparison.rows[0].advice
    assert advice.growth_limit is not None  # `compare` always sets it
    averaged = f"the last {AVERAGED}" if comparison.steps > AVERAGED else "all"
    # another normalization may have more or fewer parameters
    trained = describe_parameters(network, whose=" of the model as given")
    return "\n".join(
        (
            _VERIFIED if verified else _PREDICTED,
            f"unstable: the loss is not finite, or beyond {advice.growth_limit:g} times its first "
            "value.",
            _LEGEND,
            f"loss: training loss at half the limit, mean of {averaged} steps.",
            f"Measured: {source}, {advice.rule}, batches of {advice.batch_size}, {trained}.",
        )
    )
