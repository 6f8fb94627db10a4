"""Figures that commands write: what is refused before the work, and that nothing is made then."""

from pathlib import Path

import pytest

from normscope.cli.figures import check_figure, draw_on
from normscope.errors import InputError


def test_folder_is_made_with_the_figure_and_not_before(tmp_path):
    out = tmp_path / "new" / "deeper" / "x.svg"
    check_figure(out)
    assert list(tmp_path.iterdir()) == []
    with draw_on(out, lambda axes: axes.plot([1, 2])) as drawn:
        assert drawn == out
    assert [each.name for each in out.parent.iterdir()] == ["x.svg"]


def test_relative_folder_is_looked_for_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_figure(Path("x.svg"))
    check_figure(Path("new/deeper/x.svg"))
    assert list(tmp_path.iterdir()) == []


def test_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"taken is no folder; choose another\."):
        check_figure(tmp_path / "taken" / "deeper" / "x.svg")
