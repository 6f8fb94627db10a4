"""Kernels in plain C for small batches: built on demand, loaded, and called on tensors.

They are built once per machine, cached, and loaded once per process. Nothing here raises: without a
compiler or a writable cache, or if switched off, there are no kernels, and the layers use PyTorch
alone. A library runs as soon as it is loaded: only one that belongs to this user, and that nobody
else can write, is. A call that returns None means that the caller must compute instead.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import shlex
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from torch import Tensor

from normscope.files import replacing
from normscope.layers.standardize import LARGEST_RATIO
from normscope.layers.transforms import tracing_active, transform_active

SWITCH = "NORMSCOPE_COMPILED"
SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("lp.c", "noise.c", "sums.c", "columns.h")
)
# Loops with a rounding or a root in them become vector loops only without errno and traps.
# Not -ffast-math: sums must keep their order, and NaN must stay NaN.
FLAGS = (
    *("-std=c99", "-O3", "-march=native", "-ffp-contract=fast"),
    *("-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"),
)
_SECONDS = 60.0

Outcome = tuple[ctypes.CDLL | None, str]
_lock = threading.Lock()
_outcome: Outcome | None = None


class _UnavailableError(Exception):
    """Why there are no kernels, in one sentence."""


def library() -> ctypes.CDLL | None:
    """Return the library of kernels, or None if there is none; the first call may build it."""
    return _once()[0]


def state_of_library() -> str:
    """Return where the library is, or why there is none, in one sentence."""
    return _once()[1]


def _once() -> Outcome:
    global _outcome
    with _lock:
        if _outcome is None:
            _outcome = load_or_build()
        return _outcome


def load_or_build() -> Outcome:
    """Return the library, from the cache if possible, and its path; or None and the reason.

    Returns:
        The library or None, and one sentence.
    """
    try:
        if os.environ.get(SWITCH, "1").strip() == "0":
            raise _UnavailableError(f"Switched off by {SWITCH}=0.")
        compiler = _compiler()
        path = _private_folder() / f"{_key(compiler)}.so"
        loaded = _loaded(path)
        if loaded is None:
            _build(compiler, path)
            loaded = _loaded(path)
        if loaded is None:
            raise _UnavailableError(f"{path} was built but cannot be loaded.")
    except _UnavailableError as reason:
        return None, str(reason)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return None, f"The kernels could not be built: {error}"
    return loaded, f"Loaded from {path}."


def _threading() -> tuple[str, ...]:
    """Return the flags for OpenMP with PyTorch's own library; none if it has none.

    A second copy of that library would have its own threads, which spin while they wait for work
    and slow PyTorch's down.
    """
    beside_torch = Path(torch.__file__).parent / "lib"
    found = sorted(beside_torch.glob("libgomp*.so*"))
    return ("-fopenmp", "-Wl,--as-needed", str(found[0])) if found else ()


def _private_folder() -> Path:
    """Return the folder of the libraries, into which nobody else can put one."""
    folder = Path(platformdirs.user_cache_dir("normscope", appauthor=False)) / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder):
        raise _UnavailableError(f"{folder} belongs to another user; remove it.")
    folder.chmod(0o700)
    return folder


def _is_own(path: Path) -> bool:
    """Return whether a file or folder belongs to this user; True on systems without owners."""
    return not hasattr(os, "geteuid") or path.lstat().st_uid == os.geteuid()


def _is_private(path: Path) -> bool:
    """Return whether a path is a file of this user that nobody else can write."""
    mode = path.lstat().st_mode
    writable = mode & (stat.S_IWGRP | stat.S_IWOTH) and hasattr(os, "geteuid")
    return stat.S_ISREG(mode) and _is_own(path) and not writable


def _compiler() -> list[str]:
    """Return the command of the first C compiler found: $CC, cc, gcc or clang."""
    commands = [shlex.split(os.environ.get("CC", "")), ["cc"], ["gcc"], ["clang"]]
    for command in commands:
        if command and shutil.which(command[0]):
            return command
    raise _UnavailableError("No C compiler was found as $CC, cc, gcc or clang.")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise _UnavailableError(f"{shlex.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _key(compiler: list[str]) -> str:
    """Return a digest of everything the library depends on."""
    parts = [*(source.read_text(encoding="utf-8") for source in SOURCES), *FLAGS, *_threading()]
    parts += [*compiler, _run([*compiler, "--version"]), platform.machine(), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """Return what distinguishes processors with different instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _build(compiler: list[str], path: Path) -> None:
    """Compile to the path, and write a digest: loading an incomplete library may crash."""
    for old in (path, _seal(path)):  # whose permissions must not be kept
        old.unlink(missing_ok=True)
    with replacing(path) as unfinished:
        files = [str(source) for source in SOURCES if source.suffix == ".c"]
        command = [*compiler, *FLAGS, *files, "-lm", "-o", str(unfinished)]
        try:
            _run([*command, *_threading()])
        except _UnavailableError:  # a compiler without OpenMP: one thread
            _run(command)
        unfinished.chmod(0o700)
        digest = _digest(unfinished)
    with replacing(_seal(path)) as unfinished:
        unfinished.write_text(digest, encoding="utf-8")


def _loaded(path: Path) -> ctypes.CDLL | None:
    """Return the library, if it exists, is this user's alone, and is complete."""
    try:
        if not _is_private(path) or _digest(path) != _seal(path).read_text(encoding="utf-8"):
            return None
        return ctypes.CDLL(str(path))
    except (OSError, ValueError):
        return None


def _seal(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# A megabyte, about the cache of one core. The best threshold has not been measured.
LARGEST = 1 << 18

_LANES = 16  # floats of a vector register

_NUMBERS_PER_THREAD = 1 << 15  # as in PyTorch: waking a thread for less costs more than it saves

# Before centring the scale is at least the mean's size; near it, the spread may be small.
LARGEST_UNCENTRED_RATIO = 0.99

_ORDERS = {math.inf: 0, 1.0: 1, 2.0: 2}
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_pointer, _long, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_SHAPE = (_long, _long, _long, _int, _int, _int)


@functools.cache
def _kernel(name: str) -> Any:
    """Return a function of the library with its types declared, or None."""
    loaded = library()
    if loaded is None:
        return None
    types: dict[str, tuple[Any, ...]] = {
        "forward": (*(_pointer,) * 3, *_SHAPE, *(ctypes.c_double,) * 2, *(_pointer,) * 4),
        "backward": (*(_pointer,) * 6, *_SHAPE, *(_pointer,) * 3),
        "sums": (*(_pointer,) * 2, _long, _long, _int, _pointer),
        "noise": (*(_pointer,) * 3, _long, _long, *(ctypes.c_float,) * 2, *(_pointer,) * 2),
    }
    function = getattr(loaded, f"normscope_{name}")
    function.argtypes = types[name]
    return function


def compiled_output(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, order: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """Return the results of :func:`normscope.layers.lp_function.fused_output`, or None.

    None also where rounding may have cost the output much of its spread (see spread_is_lost).
    The caller makes sure that no transform, compiler or tracer is active.
    """
    shape = _lp_shape(x, order, weight, bias)
    if shape is None:
        return None
    output = torch.empty_like(x)
    mean, size = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    largest = x.new_empty(x.shape[1]) if order == math.inf else None
    inputs, results = (x, weight, bias), (output, mean, size, largest)
    limit = LARGEST_RATIO[x.dtype] if centred else LARGEST_UNCENTRED_RATIO
    refused = _kernel("forward")(
        *map(_address, inputs), *shape, centred, eps, limit, *map(_address, results)
    )
    return None if refused else results


def compiled_gradient(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    statistics: tuple[Tensor, Tensor, Tensor | None],
    order: float,
    centred: bool,
    input_needed: bool,
) -> tuple[Tensor | None, Tensor, Tensor] | None:
    """Return the results of :func:`normscope.layers.lp_function.fused_gradient`, or None."""
    if transform_active() or tracing_active():  # a batched gradient has no memory address
        return None
    shape = _lp_shape(x, order, weight, *statistics)
    if shape is None or not _plain(gradient) or gradient.stride() != x.stride():
        return None
    result = torch.empty_like(x) if input_needed else None
    to_weight, to_bias = x.new_empty(x.shape[1]), x.new_empty(x.shape[1])
    inputs = gradient, x, weight, *statistics
    refused = _kernel("backward")(
        *map(_address, inputs), *shape, centred, *map(_address, (result, to_weight, to_bias))
    )
    return None if refused else (result, to_weight, to_bias)


def compiled_noise(
    state: np.ndarray[Any, np.dtype[np.uint64]],
    unit_factor: Tensor,
    unit_shift: Tensor,
    jitters: tuple[float, float],
    factor: Tensor,
    shift: Tensor,
) -> bool:
    """Fill factor and shift, (samples, units, ...), from the state and advance it; or False.

    Args:
        state: the four numbers of SFC64.
        unit_factor: (units, ...), one number per element of a sample.
        unit_shift: likewise.
        jitters: spread of the factors, and of the shifts per unit of a random int32.
        factor: contiguous, for the factors.
        shift: contiguous, for the shifts.

    Returns:
        Whether there is such a kernel, and it can reach the tensors.
    """
    kernel = None if transform_active() else _kernel("noise")
    if kernel is None:
        return False
    units = unit_factor.data_ptr(), unit_shift.data_ptr()
    shape = len(factor), unit_factor.numel()
    kernel(state.ctypes.data, *units, *shape, *jitters, factor.data_ptr(), shift.data_ptr())
    return True


def compiled_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the sums per channel of the product of two batches and of the first one, or None.

    Args:
        one: (batch, channels, ...), the channels neighbours in memory.
        other: laid out alike.

    Returns:
        The two vectors, from one reading of both batches; None: not for the kernel.
    """
    if not (_plain(one) and _plain(other)) or one.numel() == 0 or one.dim() < 2:
        return None
    alike = one.shape == other.shape and one.stride() == other.stride()
    innermost = one.is_contiguous() if one.dim() == 2 else is_channels_last(one)
    if not (alike and innermost) or transform_active() or tracing_active():
        return None
    kernel = _kernel("sums")
    if kernel is None:
        return None
    count, channels = one.numel(), one.shape[1]
    threads = _threads_for(count)
    shares = torch.empty(threads, 2, channels, dtype=torch.float64, device="cpu")
    rows = count // channels
    kernel(one.data_ptr(), other.data_ptr(), rows, channels, threads, shares.data_ptr())
    products, totals = shares.sum(0).to(one.dtype)
    return products, totals


def faster_sums(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return `compiled_sums`, but None where PyTorch's kernel is as fast.

    That is so for vectors, and for images whose channels fill the lanes of a processor; with 30
    channels ours takes a third of the time, with 3 a thirtieth.
    """
    if one.dim() <= 2 or one.shape[1] % _LANES == 0:
        return None
    return compiled_sums(one, other)


def is_channels_last(x: Tensor) -> bool:
    """Return whether images or volumes are dense with the channels innermost."""
    last = _CHANNELS_LAST.get(x.dim())
    return last is not None and x.is_contiguous(memory_format=last)


def _threads_for(count: int) -> int:
    return min(torch.get_num_threads(), 1 + count // _NUMBERS_PER_THREAD)


def _lp_shape(x: Tensor, order: float, *vectors: Tensor | None) -> tuple[int, ...] | None:
    """Return rows, channels, inner positions, order number, threads; None: not for the kernel."""
    number, count = _ORDERS.get(order), x.numel()
    if number is None or not 0 < count <= LARGEST or not _plain(x):
        return None
    samples, channels = x.shape[:2]
    for vector in vectors:
        if vector is not None and not (
            _plain(vector) and vector.numel() == channels and vector.is_contiguous()
        ):
            return None
    if _kernel("forward") is None:
        return None
    threads = _threads_for(count)
    if x.is_contiguous():
        return samples, channels, count // (samples * channels), number, threads
    if is_channels_last(x):
        return count // channels, channels, 1, number, threads
    return None


def _plain(tensor: Tensor) -> bool:
    """Return whether the tensor is plain float32 data in the memory of this process."""
    return (
        tensor.dtype is torch.float32
        and tensor.is_cpu
        and type(tensor) in _PLAIN_TYPES
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
