"""Figures of loss surfaces: what is drawn, and on which scale."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import LogNorm

from normscope.errors import InputError
from normscope.plots.labels import values_of
from normscope.plots.surface import surface_plot, surfaces


def bowl(factor=1.0, points=9, dimensions=2, **more):
    x = np.linspace(-1, 1, points)
    names = ("alpha", "beta")[:dimensions]
    loss = factor * (0.1 + sum(np.meshgrid(*[x**2] * dimensions, indexing="ij")))
    axis = {"direction": ("axis", ["random"] * dimensions)}
    coordinates = {n: (n, x) for n in names} | {"axis": list(names)}
    return xr.Dataset({"loss": (names, loss), **axis, **more}, coordinates)


def test_contour_marks_the_weights_the_minimum_and_the_path():
    path = np.array([[0.5, 0.5], [0.2, 0.1], [0.0, 0.0]])
    axes = surface_plot(bowl(trajectory=(("checkpoint", "axis"), path)))
    drawn = [line.get_xydata().tolist() for line in axes.lines]
    assert path.tolist() in drawn
    assert [[0.0, 0.0]] in drawn
    assert axes.get_xlabel() == "alpha (random)"
    assert sum(len(each.places) for each in values_of(axes)) > 50


def test_three_dimensional_view_has_the_loss_as_its_height():
    axes = surface_plot(bowl(), kind="3d")
    assert axes.name == "3d"
    assert axes.get_zlabel() == "log10 loss"  # 0.1 to 2.1
    data = bowl()
    shallow = surface_plot(data.assign(loss=data["loss"] + 5), kind="3d")
    assert shallow.get_zlabel() == "loss"


def test_a_line_is_drawn_as_a_line():
    axes = surface_plot(bowl(dimensions=1))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), bowl(dimensions=1)["loss"].values)
    assert axes.get_ylabel() == "loss"


def test_surfaces_share_one_scale():
    figure = surfaces({"one": bowl(), "two": bowl(10.0)})
    (bar,) = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert isinstance(bar._colorbar.norm, LogNorm)
    assert (bar._colorbar.norm.vmin, bar._colorbar.norm.vmax) == pytest.approx((0.1, 21.0))
    view = surfaces({"one": bowl(), "two": bowl(10.0)}, "3d")
    assert view.axes[0].get_zlim() == view.axes[1].get_zlim()
    lines = surfaces({"one": bowl(dimensions=1), "two": bowl(9.0, dimensions=1)})
    assert lines.axes[0].get_ylim() == lines.axes[1].get_ylim()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("kind", ["contour", "3d"])
def test_losses_that_are_not_finite_are_drawn(kind, bad, tmp_path):
    data = bowl()
    data["loss"][0, :3] = bad
    surface_plot(data, kind=kind).figure.savefig(tmp_path / "figure.svg")
    data["loss"][:] = bad
    surface_plot(data, kind=kind).figure.savefig(tmp_path / "figure.svg")


def test_constant_and_negative_losses_are_drawn(tmp_path):
    for values in (0.0, -2.0):
        data = bowl()
        data["loss"][:] = values
        surface_plot(data).figure.savefig(tmp_path / "figure.svg")


def test_unknown_kind_is_refused():
    with pytest.raises(InputError, match="contour"):
        surface_plot(bowl(), kind="contuor")
    with pytest.raises(InputError, match="contour"):
        surfaces({"one": bowl()}, "heat")
