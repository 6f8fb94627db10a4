"""What a command works on: registered names, or a user's own functions by their place.

A place is ``package.module:function`` or ``path/to/file.py:function``. Nothing heavy is imported
until something is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from normscope.cli.devices import check_device
from normscope.cli.names import check_name
from normscope.cli.values import named_values
from normscope.errors import ArgumentTypeError, InputError
from normscope.places import found_at, is_place, made_at

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BATCH_SIZE = 256


def check_names(
    model: str, data: str | None = None, loss: str | None = None, *norms: str | None
) -> None:
    """Refuse names that nothing is registered under, before torch is loaded.

    Args:
        model: a registered name, or a place, which is not looked at yet.
        data: likewise.
        loss: likewise.
        *norms: kinds of normalization.
    """
    for kind, source, example in (
        ("models", model, "build"),
        ("data", data, "samples"),
        ("losses", loss, "loss"),
    ):
        if source is not None and not is_place(source, example):
            own = f"for your own give file.py:{example} or package.module:{example}"
            check_name(kind, source, hint=own)
    for norm in norms:
        if norm is not None:
            check_name("norms", norm)


def load_data(source: str, seed: int = 0) -> Any:
    """Data by the name of a registered set (its training split) or by the place of a function.

    Args:
        source: such as ``digits`` or ``my_data.py:batches``.
        seed: set before the user's function is called.

    Returns:
        A pair (inputs, targets), a list of batches or a DataLoader; whatever the function returns.
    """
    if is_place(source, "samples"):
        return made_at(source, seed)
    from normscope.data import load

    return load(source).train


def load_model(
    source: str,
    data: Any = None,
    norm: str | None = None,
    options: Sequence[str] = (),
    seed: int = 0,
    device: str | None = None,
) -> nn.Module:
    """A model by the name of a registered one or by the place of a factory or of a module.

    Args:
        source: such as ``vgg`` or ``my_model.py:build``.
        data: the pair (inputs, targets) that a registered model is to fit.
        norm: normalization of a registered model.
        options: further options of a registered model, each ``name=value``.
        seed: of a registered model's weights; torch's seed before a user's factory is called.
        device: to move it to; None: it stays where it was made.

    Returns:
        The model.

    Raises:
        InputError: if options are given that a user's factory cannot take.
        ArgumentTypeError: if the factory makes something else.
    """
    from torch import nn

    if not is_place(source, "build"):
        return _on_device(_registered_model(source, data, norm, options, seed), device)
    if norm is not None or options:
        raise InputError(f"norm and options are for registered models, and {source!r} is a place.")
    model = made_at(source, seed)
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"{source} must be or return a torch.nn.Module, got {type(model).__name__}."
        )
    return _on_device(model, device)


def load_loss(source: str) -> Any:
    """A loss by its registered name or by the place of a function ``loss(output, target)``."""
    from normscope.losses import LOSSES

    return found_at(source) if is_place(source, "loss") else LOSSES[source]


def chosen_batches(data: Any, batch_size: int | None, batches: int, seed: int = 0) -> list[Any]:
    """Some batches of the data, the same for the same seed.

    Args:
        data: a pair (inputs, targets), of which samples are drawn without replacement; or an
            iterable of batches, of which the first are taken as they are.
        batch_size: samples in a batch; None for 256, or all if there are fewer.
        batches: how many batches.
        seed: of the draw.

    Returns:
        A list of batches.

    Raises:
        InputError: if there are too few samples or batches, or ``batch_size`` does not apply.
        ArgumentTypeError: if the data is neither.
    """
    import torch

    from normscope.curvature.batch import check_pair, pieces, rows

    if not (isinstance(data, tuple) and len(data) == 2):
        return _first_batches(data, batch_size, batches)
    check_pair(data)
    samples = len(data[0])
    size = min(DEFAULT_BATCH_SIZE, samples // batches) if batch_size is None else batch_size
    if size < 1 or size * batches > samples:
        raise InputError(
            f"the data has {samples} samples, too few for {_counted(batches)} of {max(size, 1)}; "
            "ask for fewer or smaller ones."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator)[: size * batches]
    return pieces(rows(data, order), size)


def step_batch_size(samples: Any, batch_size: int | None) -> int | None:
    """The batch size to train a source of data with.

    Args:
        samples: as `load_data` returns it.
        batch_size: what the user asked for.

    Returns:
        That; or 256 for one pair of more samples; None for batches of their own.

    Raises:
        InputError: if the data has batches of its own and a size is asked for, or too few samples.
    """
    if isinstance(samples, tuple):
        usual = min(DEFAULT_BATCH_SIZE, count := len(samples[0]))
        if batch_size is not None and batch_size > count:
            raise InputError(
                f"the data has {count} samples, too few for a batch of {batch_size}; leave the "
                f"batch size out for batches of {usual}, or ask for a smaller one."
            )
        return usual if batch_size is None else batch_size
    if batch_size is not None:
        raise InputError(
            "the data comes in batches of its own; leave the batch size out, or return one pair "
            "(inputs, targets) of all samples."
        )
    return None


def parts_of_advice(samples: Any, batch_size: int | None, verify: bool) -> int:
    """How many parts `max_learning_rate` has, for the progress bar.

    Args:
        samples: as `load_data` returns it.
        batch_size: of a step; None for batches of their own.
        verify: whether short runs are among them, whose number is a guess.

    Returns:
        Batches whose curvature is taken, one more ahead, the prediction, the runs.
    """
    held = len(samples) if hasattr(samples, "__len__") else 3
    batches = held if batch_size is None else len(samples[0]) // batch_size
    return max(min(batches, 3), 1) + 2 + (13 if verify else 0)


def _first_batches(data: Any, batch_size: int | None, batches: int) -> list[Any]:
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ArgumentTypeError(
            "the data must be a pair (inputs, targets), a list of batches or a DataLoader, got "
            f"{type(data).__name__}."
        )
    if batch_size is not None:
        raise InputError(
            "the data comes in batches of its own; leave the batch size out, or return one pair "
            "(inputs, targets) of all samples."
        )
    taken = list(islice(data, batches))
    if len(taken) < batches:
        raise InputError(f"the data has {_counted(len(taken))}, {batches} are asked for.")
    return taken


def _counted(batches: int) -> str:
    return f"{batches} batch{'' if batches == 1 else 'es'}"


def _registered_model(
    name: str, data: Any, norm: str | None, options: Sequence[str], seed: int
) -> nn.Module:
    from normscope.curvature.batch import check_pair
    from normscope.models import MODELS, build

    fitting: dict[str, Any] = {}
    if isinstance(data, tuple) and len(data) == 2:
        check_pair(data)
        inputs, targets = data
        known = MODELS[name].__signature__.parameters
        labels = not targets.is_floating_point()
        outputs = int(targets.max()) + 1 if labels else targets[0].numel()
        sizes = {"input_shape": tuple(inputs.shape[1:]), "outputs": outputs}
        fitting = {key: value for key, value in sizes.items() if key in known}
    given = _model_options(options)
    return build(name, norm="batch" if norm is None else norm, seed=seed, **{**fitting, **given})


def _on_device(model: nn.Module, device: str | None) -> nn.Module:
    """The model on a device that this machine has; the data follows it there."""
    if device is None:
        return model
    check_device(device)
    return model.to(device)


def _model_options(texts: Sequence[str]) -> dict[str, Any]:
    """Options of a registered model, without those that the command has itself."""
    given = named_values(texts)
    for name in ("norm", "seed"):
        if name in given:
            raise InputError(
                f"{name} is an option of the command itself: use --{name} {given[name]}."
            )
    return given
