"""A training on disk, from which it goes on to the bit.

A checkpoint holds what the steps to come depend on: the model's state and buffers, the optimizer's
state, the place in the order of the batches, the random states (torch's, and those of modules that
own a ``generator``), the losses so far, and the settings, which a resumed run must share. It holds
tensors and plain types only, so that reading one cannot run code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from normscope.errors import DataError, InputError, StateError
from normscope.files import replacing, try_place
from normscope.training.loop import Loop
from normscope.training.settings import differences

__all__ = ["check_writable", "resume", "save"]

_FORMAT = "normscope training, version 2"


def check_writable(path: Path) -> None:
    """Find out before the first step, not after hours, whether a checkpoint can be saved.

    Args:
        path: the file; nothing is made or touched.

    Raises:
        InputError: if the folder cannot be made or written to.
    """
    try:
        try_place(path)
    except OSError as error:
        raise InputError(
            f"the checkpoint {path} cannot be written ({error.strerror}); name a file in a folder "
            "that can be written to."
        ) from error


def save(path: Path, loop: Loop, settings: Mapping[str, str]) -> None:
    """Write a training between two steps to a file, all of it or nothing.

    Args:
        path: the file; one that is there is replaced.
        loop: the training.
        settings: what a run that goes on from here must have in common with it.

    Raises:
        StateError: if the model or the optimizer holds what could not be read back.
    """
    content = {
        "format": _FORMAT,
        "settings": dict(settings),
        "model": loop.problem.model.state_dict(),
        "buffers": dict(loop.problem.model.named_buffers()),  # some are in no state_dict
        "optimizer": _plain(loop.optimizer.state_dict()),
        "batches": loop.batches.state(),
        "random": _random_states(loop.problem.device),
        "generators": {name: g.get_state() for name, g in _generators(loop.problem.model).items()},
        "losses": torch.tensor(loop.losses, dtype=torch.float64),
        "taken": loop.taken,
    }
    with replacing(path) as unfinished:
        torch.save(content, unfinished)
        if foreign := get_unsafe_globals_in_checkpoint(unfinished):
            raise StateError(
                f"the model or the optimizer holds {', '.join(foreign)}, but a checkpoint takes "
                "only tensors and plain types; use these, or leave checkpoint out."
            )


def resume(path: Path, loop: Loop, settings: Mapping[str, str], steps: int) -> None:
    """Bring a training to where a checkpoint left it.

    Args:
        path: the file.
        loop: a training that has not begun; its model's weights are replaced.
        settings: of the present run.
        steps: that the present run is to have in the end.

    Raises:
        InputError: if there are steps to take, but the file cannot be written.
        DataError: if the file cannot be read or is not a whole checkpoint.
        StateError: if it comes from another model or from a run with other settings, or has more
            steps than that.
    """
    content = _read(path, loop.problem.device)
    model = loop.problem.model
    _compare_tensors(path, content["model"], model.state_dict())
    _compare_settings(path, content["settings"], settings)
    _compare_steps(path, content["taken"], steps)
    if content["taken"] < steps:  # else there is nothing to save
        check_writable(path)
    model.load_state_dict(content["model"])
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(content["buffers"][name])
    loop.optimizer.load_state_dict(content["optimizer"])
    loop.losses = content["losses"].tolist()
    loop.taken = content["taken"]
    for name, generator in _generators(model).items():
        generator.set_state(content["generators"][name].cpu())
    loop.batches.restore(_on_cpu(content["batches"]))
    # last: finding the place in a DataLoader draws random numbers
    _set_random_states(loop.problem.device, content["random"])


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    """The content of a checkpoint, whole and of the right kind."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise DataError(
            f"the checkpoint {path} cannot be read ({error.strerror}); check its permissions, or "
            "name another file."
        ) from error
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load itself does not look at the checksums
        content = None if damaged else torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise _unreadable(path) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _unreadable(path)
    return content


def _unreadable(path: Path) -> DataError:
    return DataError(
        f"{path} is not a whole checkpoint of this version of normscope; delete it to start the "
        "training anew, or name another file."
    )


def _compare_tensors(path: Path, saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Name the first tensor that only one of two models has, or that has another shape there."""
    for name in (*present, *(name for name in saved if name not in present)):
        there, here = (_shape_text(state.get(name)) for state in (saved, present))
        if there != here:
            raise StateError(
                f"{path} comes from another model ({name} {there} there and {here} here); build "
                "the model as it was to go on, or use another file to start anew."
            )


def _shape_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"of shape {tuple(value.shape)}"
    return "missing" if value is None else f"of type {type(value).__name__}"


def _compare_settings(path: Path, saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    if found := differences(saved, present):
        raise StateError(
            f"{path} comes from another run ({'; '.join(found)}); use the same settings to "
            "go on, or another file to start anew."
        )


def _compare_steps(path: Path, taken: int, steps: int) -> None:
    if taken > steps:
        raise StateError(
            f"{path} has {taken} steps, more than the {steps} asked for; ask for at least {taken}, "
            "or name another file."
        )


def _generators(model: nn.Module) -> dict[str, torch.Generator]:
    """The random generators that modules own, by the module's name."""
    owned = ((name, getattr(module, "generator", None)) for name, module in model.named_modules())
    return {name: generator for name, generator in owned if isinstance(generator, torch.Generator)}


def _random_states(device: torch.device) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_random_states(device: torch.device, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"].cpu())
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"].cpu(), device)


def _plain(value: Any) -> Any:
    """Numbers of numpy, which a checkpoint may not hold, as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {name: _plain(part) for name, part in value.items()}
    return value


def _on_cpu(value: Any) -> Any:
    """Random states live on the CPU, wherever the file was loaded to."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {name: _on_cpu(part) for name, part in value.items()}
    return value
