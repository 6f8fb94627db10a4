"""Where to compute: a device that this machine has, and that the work can be moved to."""

from __future__ import annotations

from collections.abc import Container

from normscope.errors import InputError, UnknownNameError
from normscope.registry import unknown_name

__all__ = ["check_device", "device_setting"]


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have.

    Args:
        device: such as cpu or cuda:1.

    Raises:
        UnknownNameError: if it is not here.
    """
    if device == "cpu":
        return
    import torch

    if not torch.accelerator.is_available():
        raise UnknownNameError(
            f"unknown device of this machine {device!r}: this machine has only cpu."
        )
    known = ["cpu"]
    name = torch.accelerator.current_accelerator().type  # type: ignore[union-attr]  # there is
    known += [name, *(f"{name}:{i}" for i in range(torch.accelerator.device_count()))]
    if device not in known:
        raise unknown_name("device of this machine", device, known)


def device_setting(work: str, settings: Container[str], device: str) -> dict[str, str]:
    """The setting that moves an experiment to a device.

    Args:
        work: name of the experiment.
        settings: names of those it has.
        device: where to; the CPU is where all of them are without a setting.

    Returns:
        The setting by its name; nothing for the CPU.

    Raises:
        InputError: if the experiment stays on the CPU.

    >>> device_setting("tour", ["seed", "width"], "cpu")
    {}
    """
    check_device(device)
    if device == "cpu":
        return {}
    if "device" not in settings:
        raise InputError(
            f"{work} computes on the cpu alone and cannot be moved to {device}; leave --device out."
        )
    return {"device": device}
