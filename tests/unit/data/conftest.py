from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.data.synthetic import SmallData

from normscope.data import cache
from normscope.data.collection import user_cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own user cache and no data folder in its environment."""
    folder = tmp_path / "user-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(folder))
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
    cache._warn_once.cache_clear()
    assert tmp_path in user_cache().parents
    return user_cache()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> SmallData:
    """Small data sets whose digests count as the official ones."""
    data = SmallData()
    data.make_official(monkeypatch)
    return data
