"""Building the kernels: once, into the cache, and never an error where that cannot be."""

import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import platformdirs
import pytest

from normscope.layers.compiled import build

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty user cache, the default environment, and nothing loaded in this process yet."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "cache"))
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "_outcome", None)
    return tmp_path / "cache" / "kernels"


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
def test_library_is_built_once_and_then_loaded_from_the_cache(cache, monkeypatch):
    first, _ = build.load_or_build()
    assert first.normscope_forward
    (path,) = cache.glob("*.so")
    assert not list(cache.glob(".*"))  # nothing unfinished is left
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built a second time"))
    again, state = build.load_or_build()
    assert again is not None
    assert str(path) in state


def test_switch_turns_the_kernels_off(cache, monkeypatch):
    monkeypatch.setenv(build.SWITCH, "0")
    assert build.library() is None
    assert build.SWITCH in build.state_of_library()
    assert not cache.exists()


def test_no_compiler_is_no_error(cache, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert build.library() is None
    assert "No C compiler" in build.state_of_library()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('test "$1" = --version || { echo broken header >&2; exit 1; }', "broken header"),
        ("exit 3", "failed"),  # not even a version
        ("true", "could not be built"),  # says yes and writes nothing
    ],
)
def test_failing_compiler_is_no_error_and_is_tried_once(cache, tmp_path, monkeypatch, text, reason):
    calls = tmp_path / "calls"
    monkeypatch.setenv("CC", script(tmp_path / "compiler", f"echo call >> {calls}\n{text}"))
    assert build.library() is None
    assert reason in build.state_of_library()
    tried = calls.read_text()
    assert build.library() is None
    assert calls.read_text() == tried
    assert not list(cache.glob("*.so"))


def test_compiler_that_hangs_is_given_up(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", script(tmp_path / "compiler", "exec sleep 30"))
    monkeypatch.setattr(build, "_SECONDS", 0.2)
    assert build.library() is None
    assert "timed out" in build.state_of_library()


@needs_compiler
def test_cache_that_cannot_be_written_is_no_error(cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert build.library() is None
    assert "could not be built" in build.state_of_library()


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "garbage", "no seal"])
def test_damaged_library_is_built_anew(cache, damage):
    path = cache / f"{build._key(build._compiler())}.so"
    build._build(build._compiler(), path)
    whole = path.read_bytes()
    if damage == "no seal":
        path.with_suffix(".sha256").unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"not a library")
    assert build._loaded(path) is None
    loaded, _ = build.load_or_build()
    assert loaded.normscope_noise
    assert build._digest(path) == path.with_suffix(".sha256").read_text()


@needs_compiler
def test_key_changes_with_flags_compiler_and_processor(cache, monkeypatch, tmp_path):
    compiler = build._compiler()
    keys = {build._key(compiler)}
    monkeypatch.setattr(build, "_processor", lambda: "another")
    keys.add(build._key(compiler))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    keys.add(build._key(compiler))
    keys.add(build._key([script(tmp_path / "compiler", "echo version 1")]))
    keys.add(build._key([script(tmp_path / "compiler", "echo version 2")]))
    assert len(keys) == 5


def test_threads_at_once_build_once_and_share_the_library(cache, monkeypatch):
    built, start = [], threading.Barrier(4)

    def load_or_build():
        built.append(object())
        threading.Event().wait(0.05)
        return built[-1], "built"

    monkeypatch.setattr(build, "load_or_build", load_or_build)
    seen = []

    def ask():
        start.wait()
        seen.append(build.library())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert seen == built * 4


def plant(path: Path) -> None:
    """Put a library there that reports that it was loaded, with the right digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.parent / "planted.c"
    marker = path.parent / "loaded"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)"
        f'{{ FILE *out = fopen("{marker}", "w"); fclose(out); }}\n'
    )
    subprocess.run([*build._compiler(), "-shared", "-fPIC", source, "-o", path], check=True)
    path.with_suffix(".sha256").write_text(build._digest(path))


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o722, 0o770])
def test_library_that_others_can_write_is_never_loaded(cache, mode):
    path = cache / f"{build._key(build._compiler())}.so"
    plant(path)
    path.chmod(mode)
    loaded, _ = build.load_or_build()
    assert not (cache / "loaded").exists()
    assert loaded.normscope_forward  # built anew
    assert path.stat().st_mode & 0o777 == 0o700


@needs_compiler
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may chown")
def test_library_of_another_user_is_never_loaded(cache):
    path = cache / f"{build._key(build._compiler())}.so"
    plant(path)
    os.chown(path, 65534, 65534)
    loaded, _ = build.load_or_build()
    assert not (cache / "loaded").exists()
    assert loaded.normscope_forward
    assert path.stat().st_uid == os.geteuid()


@needs_compiler
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may chown")
def test_folder_of_another_user_is_not_used(cache):
    plant(cache / f"{build._key(build._compiler())}.so")
    os.chown(cache, 65534, 65534)
    assert build.library() is None
    assert "belongs to another user" in build.state_of_library()
    assert not (cache / "loaded").exists()


@needs_compiler
def test_link_to_a_library_is_never_loaded(cache, tmp_path):
    path = cache / f"{build._key(build._compiler())}.so"
    plant(tmp_path / "elsewhere" / "planted.so")
    cache.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere" / "planted.so")
    path.with_suffix(".sha256").write_text(build._digest(path))
    loaded, _ = build.load_or_build()
    assert loaded.normscope_forward
    assert not (tmp_path / "elsewhere" / "loaded").exists()


@needs_compiler
def test_library_is_private_whatever_the_umask(cache, monkeypatch):
    before = os.umask(0)
    try:
        build.load_or_build()
    finally:
        os.umask(before)
    (path,) = cache.glob("*.so")
    assert path.stat().st_mode & 0o777 == 0o700
    assert cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built a second time"))
    assert build.load_or_build()[0] is not None
