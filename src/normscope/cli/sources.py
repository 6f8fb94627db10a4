"""What a command works on: registered names, or a user's own functions by their place.

A place is ``package.module:function`` or ``path/to/file.py:function``. Nothing heavy is imported
until something is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normscope.cli.devices import check_device
from normscope.cli.names import check_name
from normscope.cli.own_files import check_place
from normscope.cli.values import named_values
from normscope.errors import ArgumentTypeError, InputError
from normscope.import_path import import_object, is_import_path, load_object

if TYPE_CHECKING:
    from torch import nn


def check_names(
    model: str, data: str | None = None, loss: str | None = None, *norms: str | None
) -> None:
    """Refuse names that nothing is registered or defined under, before torch is loaded.

    Args:
        model: a registered name, or a place; its file is read and not run yet.
        data: likewise.
        loss: likewise.
        *norms: kinds of normalization.
    """
    for kind, source, example in (
        ("models", model, "build"),
        ("data", data, "samples"),
        ("losses", loss, "loss"),
    ):
        if source is None:
            continue
        if is_import_path(source, example):
            check_place(source)
        else:
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
    if is_import_path(source, "samples"):
        return load_object(source, seed)
    from normscope.data import load

    _note_download(source)
    return load(source).train


def _note_download(name: str) -> None:
    """Say on stderr that a data set comes from the network, which takes its time."""
    from normscope.data import DATASETS, parts, path
    from normscope.data.collection import download_root

    if name in DATASETS and parts(name) and path(name) is None and sys.stderr is not None:
        print(
            f"normscope: note: {name} is not here: downloading it to {download_root() / name}; see "
            "normscope data fetch.",
            file=sys.stderr,
        )


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

    if not is_import_path(source, "build"):
        return _on_device(_registered_model(source, data, norm, options, seed), device)
    if norm is not None:
        raise InputError(
            f"--norm is for registered models, and {source} is your own; let it return the model "
            f"with that normalization, or give normscope compare --norms {norm}."
        )
    if options:
        raise InputError(
            f"--option is for registered models, and {source} is your own; let it return the model "
            "with them."
        )
    model = load_object(source, seed)
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"{source} must be or return a torch.nn.Module, got {type(model).__name__}."
        )
    return _on_device(model, device)


def load_loss(source: str) -> Any:
    """A loss by its registered name or by the place of a function ``loss(output, target)``."""
    from normscope.problem.loss import LOSSES

    return import_object(source) if is_import_path(source, "loss") else LOSSES[source]


def _registered_model(
    name: str, data: Any, norm: str | None, options: Sequence[str], seed: int
) -> nn.Module:
    from normscope.models import MODELS, build
    from normscope.problem.batch import check_pair

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
