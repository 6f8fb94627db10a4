"""Checkpoints: a training on disk, from which it resumes bit for bit.

A checkpoint holds what the coming steps depend on: the model's state and buffers, the buffers of
the loss, the optimizer's state, the position in the data, the RNG states (torch's, and those of
modules with a ``generator``), the losses so far, and the settings, which a resumed run must share.
It holds tensors and plain types only, so that reading one cannot run code.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence, Sized
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.serialization import get_unsafe_globals_in_checkpoint

from normscope.errors import DataError, InputError, StateError
from normscope.files import replacing, try_write
from normscope.problem.batch import Batch, tensors_of
from normscope.problem.isolation import RandomGenerators
from normscope.problem.loss import Loss, WholeLoss
from normscope.problem.loss_state import loss_modules
from normscope.problem.problem import Problem
from normscope.training.loop import Loop

_FORMAT = "normscope training, version 3"
_SAMPLED_VALUES = 1_000_000  # values of a tensor that its checksum covers, at most
_IGNORED_OPTIONS = ("foreach", "fused", "capturable", "differentiable", "initial_lr", "param_names")
_OPTION_NAMES = {"lr": "learning rate", "params": "number of parameters"}
_OPTION_PREFIX = "optimizer's "


def check_writable(path: Path) -> None:
    """Raise now, not after hours, if a checkpoint cannot be saved.

    Args:
        path: the file; nothing is created or changed.

    Raises:
        InputError: if the folder cannot be created or written to.
    """
    try:
        try_write(path)
    except OSError as error:
        raise InputError(
            f"the checkpoint {path} cannot be written ({error.strerror}); name a file in a folder "
            "that can be written to."
        ) from error


@runtime_checkable
class Stateful(Protocol):
    """An object whose state is part of a checkpoint, such as a `normscope.Scope`."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as tensors and plain types."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> object:
        """Restore what `state_dict` returned."""
        ...


def save(path: Path, loop: Loop, settings: Mapping[str, str], observer: object = None) -> None:
    """Write a training between two steps to a file, atomically.

    Args:
        path: the file; an existing one is replaced.
        loop: the training.
        settings: what a run that resumes here must share.
        observer: saved with the training if it is `Stateful`.

    Raises:
        StateError: if the model or the optimizer holds what could not be read back, or the disk is
            full.
    """
    model = loop.problem.model
    content = {
        "format": _FORMAT,
        "settings": dict(settings),
        "model": model.state_dict(),
        "buffers": dict(model.named_buffers()),  # some are not in the state_dict
        "loss": [dict(each.named_buffers()) for each in loss_modules(loop.problem.loss, model)],
        "optimizer": _without_numpy(loop.optimizer.state_dict()),
        "batches": loop.batches.state(),
        "random": RandomGenerators(model).torch_states(),
        "losses": torch.tensor(loop.losses, dtype=torch.float64),
        "taken": loop.taken,
        "observer": dict(observer.state_dict()) if isinstance(observer, Stateful) else None,
    }
    with replacing(path) as unfinished:
        _write(content, unfinished, path)
        if foreign := get_unsafe_globals_in_checkpoint(unfinished):
            raise StateError(
                f"the model or the optimizer holds {', '.join(foreign)}, but a checkpoint takes "
                "only tensors and plain types; use these, or leave checkpoint out."
            )


def _write(content: Mapping[str, Any], unfinished: Path, path: Path) -> None:
    try:
        torch.save(content, unfinished)
    except (OSError, RuntimeError) as error:  # torch raises a RuntimeError for a full disk
        reason = " ".join(str(error).split())[:100]
        raise StateError(
            f"the checkpoint {path} cannot be written: a full disk, or a limit on file sizes "
            f"({reason}); free some space, and fit again to resume from the last checkpoint."
        ) from error


def resume(
    path: Path, loop: Loop, settings: Mapping[str, str], steps: int, observer: object = None
) -> None:
    """Restore a training from a checkpoint.

    Args:
        path: the file.
        loop: a training that has not begun; its model's weights are replaced.
        settings: of the present run.
        steps: total number of steps of the present run.
        observer: restored too if it is `Stateful`.

    Raises:
        InputError: if there are steps to take, but the file cannot be written.
        DataError: if the file cannot be read or is not a whole checkpoint.
        StateError: if it comes from another model or from a run with other settings, or has more
            steps.
    """
    model = loop.problem.model
    content = _read(path, loop.problem.device)
    _check_fits(path, content, model, settings, steps)
    if content["taken"] < steps:  # else there is nothing to save
        check_writable(path)
    model.load_state_dict(content["model"])
    owners = [model, *loss_modules(loop.problem.loss, model)]
    _restore_buffers(path, owners, [content["buffers"], *content.get("loss", ())])
    loop.optimizer.load_state_dict(content["optimizer"])
    loop.losses = content["losses"].tolist()
    loop.taken = content["taken"]
    loop.batches.restore(_on_cpu(content["batches"]))
    if isinstance(observer, Stateful):
        observer.load_state_dict(_observer_state(path, content))
    # Last, because finding the position in a DataLoader draws random numbers.
    RandomGenerators(model).set_torch_states(_on_cpu(content["random"]))


def steps_taken(path: Path) -> int:
    """Return the number of updates that a checkpoint has; 0 if there is none.

    Args:
        path: the file.
    """
    return int(_read(path, torch.device("cpu"))["taken"]) if path.exists() else 0


def read_observer(path: Path) -> tuple[Mapping[str, Any], list[float]]:
    """Return the state of the callback in a checkpoint, and the losses so far.

    Args:
        path: the file; the training may be under way in another process.
    """
    content = _read(path, torch.device("cpu"))
    return _observer_state(path, content), content["losses"].tolist()


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the content of a checkpoint, verified."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(
            f"the checkpoint {path} cannot be read ({error.strerror}); check its permissions, or "
            "name another file."
        ) from error
    invalid = DataError(
        f"{path} is not a whole checkpoint of this version of normscope; delete it to restart the "
        "training, or name another file."
    )
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not verify the checksums
        content = None if damaged else torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise invalid from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise invalid
    return content


def _check_fits(
    path: Path,
    content: Mapping[str, Any],
    model: nn.Module,
    settings: Mapping[str, str],
    steps: int,
) -> None:
    """Raise if a checkpoint has other tensors, other settings or more steps."""
    saved, present = content["model"], model.state_dict()
    for name in (*present, *(name for name in saved if name not in present)):
        there, here = (_describe(state.get(name)) for state in (saved, present))
        if there != here:
            raise StateError(
                f"{path} comes from another model ({name} {there} there and {here} here); build "
                "the model as it was to resume, or use another file to start from the beginning."
            )
    if found := _differences(content["settings"], settings):
        raise StateError(
            f"{path} comes from another run ({'; '.join(found)}); use the same settings to "
            "resume, or another file to start from the beginning."
        )
    if content["taken"] > steps:
        raise StateError(
            f"{path} has {content['taken']} steps, more than the {steps} asked for; ask for at "
            f"least {content['taken']}, or name another file."
        )


def _restore_buffers(
    path: Path, owners: Sequence[nn.Module], saved: Sequence[Mapping[str, Tensor]]
) -> None:
    """Restore the buffers of the model and of the loss's modules, which a file may lack."""
    pairs = [
        (buffer, tensors.get(name))
        for owner, tensors in zip(owners, saved, strict=False)
        for name, buffer in owner.named_buffers()
    ]
    if any(tensor is None or tensor.shape != buffer.shape for buffer, tensor in pairs):
        raise StateError(
            f"{path} comes from a model or a loss with other buffers; build both as they were to "
            "resume, or use another file to start from the beginning."
        )
    with torch.no_grad():
        for buffer, tensor in pairs:
            assert tensor is not None
            buffer.copy_(tensor)


def _observer_state(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    state: Mapping[str, Any] | None = content.get("observer")
    if state is None:
        raise StateError(
            f"{path} was saved without the state of a callback, but this callback has one "
            "(state_dict); use another file to start from the beginning."
        )
    return state


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"of shape {tuple(value.shape)}"
    return "missing" if value is None else f"of type {type(value).__name__}"


def _without_numpy(value: Any) -> Any:
    """Convert NumPy scalars, which a checkpoint cannot hold, to Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_without_numpy, value))
    if type(value) is dict:
        return {name: _without_numpy(part) for name, part in value.items()}
    return value


def _on_cpu(value: Any) -> Any:
    """Move RNG states to the CPU, wherever the file was loaded to."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_on_cpu(part) for part in value]
    return value


def settings_of(problem: Problem, optimizer: Optimizer, **choices: object) -> dict[str, str]:
    """Return the settings that the two parts of a resumed training must share, as strings.

    Args:
        problem: model, loss and data. The model counts by its repr and its shapes, not by its
            weights; a loss by its name, or as a module by its options and tensors.
        optimizer: counts by its class and the present options of its groups, with the learning
            rate before any scheduler.
        **choices: the other arguments of the run.

    Returns:
        A string for each setting. Runs with unequal strings differ; equal strings are no proof:
        two lambdas look alike, as do modules whose reprs agree.

    >>> from normscope.training import sgd
    >>> line = nn.Linear(1, 1)
    >>> problem = Problem(line, "squared_error", (torch.ones(2, 1), torch.ones(2, 1)))
    >>> settings_of(problem, sgd(0.1)(line.parameters()), batch_size=2)["batch_size"]
    '2'
    """
    state = problem.model.state_dict().items()
    shapes = [f"{name} {t.dtype} {tuple(t.shape)}" for name, t in state if isinstance(t, Tensor)]
    checksum = _checksum(f"{shapes} {_one_line_repr(problem.model)}".encode())
    return {
        "model": f"{type(problem.model).__qualname__} {checksum}",
        "loss": _describe_loss(problem.loss),
        "data": _describe_data(problem),
        **_optimizer_settings(optimizer),
    } | {name: repr(choice) for name, choice in choices.items()}


def _differences(saved: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Describe each setting that differs; options only of optimizers of one class.

    >>> _differences({"seed": "0", "batch_size": "8"}, {"seed": "1", "batch_size": "8"})
    ['seed 0 there and 1 here']
    """
    same_class = saved.get("optimizer") == present.get("optimizer")
    return [
        f"{name} {saved.get(name, 'unset')} there and {present.get(name, 'unset')} here"
        for name in sorted(saved.keys() | present.keys())
        if saved.get(name) != present.get(name)
        and (same_class or not name.startswith(_OPTION_PREFIX))
    ]


def _describe_loss(loss: Loss | WholeLoss | str | None) -> str:
    if isinstance(loss, WholeLoss):
        return f"whole_loss {' '.join(map(_describe_loss, loss.parts))}"
    if not isinstance(loss, nn.Module):
        return getattr(loss, "__qualname__", None) or _one_line_repr(loss)
    options = [  # the reprs of torch's losses omit them
        f"{name}={value}"
        for module in loss.modules()
        for name, value in vars(module).items()
        if isinstance(value, str | int | float) and not name.startswith("_") and name != "training"
    ]
    tensors = _checksum(_describe_batch(loss.state_dict()).encode())
    return f"{_one_line_repr(loss)} {' '.join(options)} {tensors}"


def _one_line_repr(value: object) -> str:
    """Return the repr in one line, without addresses, which differ from run to run."""
    return " ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).split())


def _optimizer_settings(optimizer: Optimizer) -> dict[str, str]:
    """Return the class, and every option of every group under its own name."""
    groups = optimizer.param_groups
    several = len(groups) > 1
    found = {
        "optimizer": type(optimizer).__qualname__ + (f" of {len(groups)} groups" if several else "")
    }
    for number, group in enumerate(groups):
        initial = group.get("initial_lr", group["lr"])
        options = group | {"params": len(group["params"]), "lr": initial}
        for name, value in sorted(options.items()):
            if name not in _IGNORED_OPTIONS:
                label = f"{_OPTION_PREFIX}{_OPTION_NAMES.get(name, name)}"
                is_number = isinstance(value, Real | np.generic | Tensor)
                plain = float(value) if is_number else value  # 0 and 0.0 are the same
                found[f"{label} in group {number}" if several else label] = repr(plain)
    return found


def _describe_data(problem: Problem) -> str:
    if problem.is_one_batch:
        return _describe_batch(problem.data)
    if isinstance(problem.data, list):
        batches = [_describe_batch(batch) for batch in problem.data]
        return f"{len(batches)} batches {_checksum(repr(batches).encode())}"
    length = len(problem.data) if isinstance(problem.data, Sized) else "unknown number of"
    return f"{type(problem.data).__qualname__} of {length} batches"


def _describe_batch(batch: Batch) -> str:
    return " ".join(f"{tuple(t.shape)} {_values_checksum(t)}" for t in tensors_of(batch))


def _values_checksum(tensor: Tensor) -> str:
    """Return a checksum over evenly spaced values, fast for any size."""
    stride = max(1, tensor.numel() // _SAMPLED_VALUES)
    sampled = tensor.detach().reshape(-1)[::stride].cpu().contiguous()
    return _checksum(sampled.view(torch.uint8).numpy().tobytes())


def _checksum(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"
