import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import xarray as xr

from normscope.files import replacing, try_write


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")

    def interrupted():
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["result.json"]


def test_replacing_writes_the_new_content_and_makes_the_folder(tmp_path):
    path = tmp_path / "a" / "b" / "result.json"
    with replacing(path) as unfinished:
        assert unfinished.suffix == ".json"
        unfinished.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert [found.name for found in path.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_replacing_keeps_the_permissions_of_the_old_file(tmp_path, mode):
    path = tmp_path / "result.json"
    path.write_text("old")
    path.chmod(mode)
    with replacing(path) as unfinished:
        unfinished.write_text("new")
        assert unfinished.stat().st_mode & 0o077 == 0  # private while it is written
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == mode


def test_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    with replacing(tmp_path / "new") as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may chown")
def test_replacing_keeps_the_owner_of_the_old_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    os.chown(path, 65534, 65534)
    with replacing(path) as unfinished:
        unfinished.write_text("new")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


AS_OTHER_USER = """
import os, sys
from normscope.files import replacing, try_write

os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
with replacing(sys.argv[1]) as unfinished:
    unfinished.write_text("new")
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may chown")
def test_group_that_cannot_be_kept_hands_no_rights_to_another():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        path = folder / "result.json"
        path.write_text("old")
        path.chmod(0o664)
        subprocess.run([sys.executable, "-c", AS_OTHER_USER, path], check=True)
        assert path.read_text() == "new"
        assert path.stat().st_uid == 65534
        assert path.stat().st_mode & 0o777 == 0o644


def test_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to("folder/target.txt")
    try_write(link)
    with replacing(link) as unfinished:
        unfinished.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("call", [lambda path: replacing(path).__enter__(), try_write])
def test_device_or_pipe_is_never_replaced(tmp_path, call):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        call(tmp_path / "pipe")
    assert [found.name for found in tmp_path.iterdir()] == ["pipe"]


FULL = """
import resource, sys
from normscope.cli.main import main

resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
sys.exit(main(["report", sys.argv[1], "-o", sys.argv[2]]))
"""


def test_full_disk_names_the_file_and_keeps_the_old_one(tmp_path):
    xr.Dataset({"loss": ((), 1.0)}).to_netcdf(tmp_path / "numbers.nc", engine="scipy")
    out = tmp_path / "report.html"
    out.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path / "numbers.nc", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"normscope: {out}: File too large\n"
    assert out.read_text() == "old"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["numbers.nc", "report.html"]
