"""Peak memory of a call, as the system sees it (Linux)."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path


def peak_megabytes(call: Callable[[], object]) -> float | None:
    """How far the process's resident memory rises above its start during a call.

    Args:
        call: what to measure; its result is dropped.

    Returns:
        Megabytes; None where the system does not tell.
    """
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # free memory that is kept would hide a need for it
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    except OSError:
        call()
        return None
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """A line of the process's status, in kilobytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))
