"""Build the kernels once per machine, keep them in the cache, load them once per process.

Nothing here raises: without a compiler or a writable cache, or if switched off, there are no
kernels. A library runs as soon as it is loaded: only one that belongs to this user, and that nobody
else can write, is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import platformdirs
import torch

from normscope.files import replacing

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
