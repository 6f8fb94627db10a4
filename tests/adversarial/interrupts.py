"""Interrupt a call at a random instant, and compare everything that it may have changed."""

from __future__ import annotations

import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

MODULE_METHODS = ("__call__", "__getattr__", "__setattr__", "forward", "train", "_call_impl")


def global_state() -> dict[str, Any]:
    """Everything that a call might leave changed in the process, as comparable values."""
    c: Any = torch._C
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "function modes": c._len_torch_function_stack(),
        "dispatch modes": c._len_torch_dispatch_stack(),
        "saved-tensor hooks": c._autograd._top_saved_tensors_default_hooks(True),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), depth),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "attention": (c._get_flash_sdp_enabled(), c._get_math_sdp_enabled()),
        "warning filters": (id(warnings.filters), len(warnings.filters), warnings.showwarning),
        "floating-point errors": np.geterr(),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "module methods": [vars(nn.Module).get(name) for name in MODULE_METHODS],
        "torch RNG": torch.get_rng_state().numpy().tobytes(),
        "NumPy RNG": repr(np.random.get_state()),  # noqa: NPY002 - the global one is meant
        "Python RNG": random.getstate(),
        "model lock": _lock_is_free(),
    }


def _lock_is_free() -> bool:
    from normscope.problem.isolation import MODEL_LOCK

    found: list[bool] = []

    def try_it() -> None:
        found.append(MODEL_LOCK.acquire(blocking=False))
        if found[0]:
            MODEL_LOCK.release()

    other = threading.Thread(target=try_it)
    other.start()
    other.join()
    return found[0]


def model_state(model: nn.Module) -> dict[str, Any]:
    """Identities and bits of everything a model holds."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in module.__dict__.items():
            found[f"{path}.__dict__[{name}]"] = _bits(value)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            found[f"{path}.{name}"] = (id(tensor), _bits(tensor))
            if isinstance(tensor, nn.Parameter):
                found[f"{path}.{name}.grad"] = (id(tensor.grad), _bits(tensor.grad))
    return found


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain: Any = value.detach()
        plain = plain.to_local() if hasattr(plain, "to_local") else plain  # this process's shard
        return (plain.dtype, tuple(plain.shape), plain.contiguous().view(-1).numpy().tobytes())
    if isinstance(value, dict):
        return [(repr(key), id(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | set):
        return (id(value), [_bits(each) for each in value])
    if isinstance(value, np.ndarray):
        return (id(value), value.tobytes())
    if isinstance(value, torch.Generator):
        return (id(value), value.get_state().numpy().tobytes())
    return (id(value), repr(value)) if isinstance(value, int | float | str) else id(value)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs."""
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def interrupt_after(seconds: float, call: Callable[[], Any], again: float | None = None) -> bool:
    """Run a call, press Ctrl-C after some seconds; return whether that interrupted it.

    The alarm of the system's timer is passed on to whatever handles SIGINT then, at the very
    instruction at which Python would have handled it.

    Args:
        seconds: until the interrupt.
        call: what to run.
        again: seconds from the first interrupt to a second one.
    """
    armed = True
    pressed = 0

    def forward(_: int, frame: Any) -> None:
        nonlocal pressed
        if not armed:
            return
        pressed += 1
        if again is not None and pressed == 1:
            signal.setitimer(signal.ITIMER_REAL, max(again, 1e-6))
        handler = signal.getsignal(signal.SIGINT)
        assert callable(handler)
        handler(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGALRM, forward)
    interrupted = False
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            call()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # after the call returned
        interrupted = False
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
    return interrupted


def duration(call: Callable[[], Any]) -> float:
    """Seconds of a call, the smaller of two."""
    found = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)
