from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest
from tests.unit.data.synthetic import SmallData

from normscope.data import images


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own user cache and no data folder in its environment."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(folder))
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    images._warn_once.cache_clear()
    cache_of_user = Path(platformdirs.user_cache_dir("normscope", appauthor=False))
    assert tmp_path in cache_of_user.parents
    return cache_of_user


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SmallData:
    """Small data sets whose digests count as the official ones."""
    data = SmallData()
    data.make_official(monkeypatch)
    return data
