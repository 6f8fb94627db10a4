import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb

from normscope.errors import StateError
from normscope.plots.scope import band, band_of, layer_lines, scope_figure
from normscope.plots.style import new_figure


def values(layers=3):
    names = [f"layer{number}" for number in range(layers)]
    numbers = np.arange(1.0, 2 * layers + 1).reshape(2, layers)
    return xr.DataArray(
        numbers, dims=("step", "layer"), coords={"step": [0, 5], "layer": names}, name="norm"
    )


def test_every_layer_has_a_line():
    axes = layer_lines(values(), logarithmic=True)
    assert [line.get_ydata().tolist() for line in axes.lines] == [[1, 4], [2, 5], [3, 6]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "layer0",
        "layer1",
        "layer2",
    ]
    assert axes.get_yscale() == "log"
    assert len({line.get_color() for line in axes.lines}) == 3


def test_no_line_is_too_bright_for_white():
    for line in layer_lines(values(5)).lines:
        linear = [
            ((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92
            for c in to_rgb(line.get_color())
        ]
        luminance = np.dot([0.2126, 0.7152, 0.0722], linear)
        assert 1.05 / (luminance + 0.05) > 2.5


def test_layer_without_values_is_left_out():
    some = values()
    some[:, 1] = np.nan
    drawn, whole = layer_lines(some).lines, layer_lines(values()).lines
    assert [line.get_color() for line in drawn] == [whole[0].get_color(), whole[2].get_color()]


def test_other_dimensions_are_averaged():
    units = xr.concat([values(), values() + 2], "unit")
    drawn = [line.get_ydata().tolist() for line in layer_lines(units).lines]
    assert drawn == [[2, 5], [3, 6], [4, 7]]


def test_legend_of_many_layers_names_some():
    texts = layer_lines(values(40)).get_legend().get_texts()
    assert len(texts) <= 10
    assert texts[-1].get_text() == "layer39"


def test_no_value_above_zero_keeps_the_axis_linear():
    assert layer_lines(-values(), logarithmic=True).get_yscale() == "linear"


def test_scope_figure_has_a_panel_for_each_quantity(tmp_path):
    results = xr.Dataset(
        {
            "loss": ("step", [2.0, 1.0]),
            "top_eigenvalue": ("step", [np.nan, np.nan]),
            "ray_loss": (("step", "distance"), [[1.0, 2.0], [1.0, 3.0]]),
            "gradient_norm": values().rename(None),
        }
    )
    figure = scope_figure(results)
    assert [axes.get_title() for axes in figure.axes] == [
        "loss",
        "loss along the gradient",
        "gradient norm",
    ]
    (legend,) = figure.legends  # one for all panels over layers
    assert [text.get_text() for text in legend.get_texts()] == ["layer0", "layer1", "layer2"]
    figure.savefig(tmp_path / "scope.svg")
    assert (tmp_path / "scope.svg").stat().st_size > 5000


def test_nothing_measured_is_told():
    with pytest.raises(StateError, match="no step was measured"):
        scope_figure(xr.Dataset())


def test_layers_of_any_name_are_in_the_legend():
    some = values().assign_coords(layer=["", "_fc", "7"])
    texts = [text.get_text() for text in layer_lines(some).get_legend().get_texts()]
    assert texts == ["(the model itself)", " _fc", "layer 7"]
    layer_lines(some[:, :1])  # no warning of an empty legend


def test_no_panel_of_a_scope_stands_alone_in_the_last_row():
    curves = [
        "loss",
        "effective_smoothness",
        "local_smoothness",
        "top_eigenvalue",
        "gradient_norm",
        "shift_cosine",
        "shift_distance",
    ]
    for count, rows in ((3, 1), (4, 2), (7, 2)):
        named = {
            name: ("step", [2.0, 1.0]) if place < 4 else values().rename(None)
            for place, name in enumerate(curves[:count])
        }
        grid = scope_figure(xr.Dataset(named)).axes[0].get_gridspec()
        assert grid.nrows == rows
        assert count % grid.ncols != 1


def scope_of(layers, name):
    """A scope's results over layers and normalization layers of these names."""
    both = {
        "gradient_norm": values(layers).rename(None),
        "mean_gap": values(layers)
        .rename(layer="norm_layer")
        .rename(None)
        .expand_dims("comparison"),
    }
    names = [name.format(number) for number in range(layers)]
    return xr.Dataset(both).assign_coords(layer=names, norm_layer=names)


@pytest.mark.parametrize("name", ["{}", "backbone.encoder.stage{}.block.convolution"])
@pytest.mark.parametrize("layers", [2, 20])
def test_legends_of_a_scope_lie_on_nothing(layers, name):
    figure = scope_figure(scope_of(layers, name))
    figure.draw_without_rendering()
    boxes = [legend.get_window_extent() for legend in figure.legends]
    boxes += [axes.get_tightbbox() for axes in figure.axes]
    assert len(boxes) == 4
    for place, box in enumerate(boxes):
        assert box.height > 20
        assert figure.bbox.x0 - 1 < box.x0 < box.x1 < figure.bbox.x1 + 1
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


def test_legend_says_of_how_many_layers_it_names_some():
    few, many = (scope_figure(scope_of(layers, "{}")).legends for layers in (3, 20))
    assert [legend.get_title().get_text() for legend in few] == ["layers", "normalization layers"]
    named = len(many[0].get_texts())
    assert named < 20
    assert many[0].get_title().get_text() == f"{named} of 20 layers"


def test_legend_of_layers_stands_beside_their_lines():
    axes = layer_lines(values(9))
    axes.figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().x0 >= axes.bbox.x1


@pytest.mark.parametrize("scale", [1.0, 1e-7, -1e-7, 1e9])
def test_values_close_to_each_other_are_said_in_full(scale):
    numbers = scale * (0.9999 + 1e-6 * np.arange(3.0))
    results = xr.Dataset(
        {
            "loss": ("step", numbers),
            "gradient_cosine": (("step", "distance"), np.stack([numbers, numbers], 1)),
            "shift_cosine": (("step", "layer"), numbers[:, None]),
        },
        {"step": [0, 1, 2], "layer": ["fc"]},
    )
    figure = scope_figure(results)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.yaxis.get_offset_text().get_text() == ""
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert len(set(labels)) == len(labels)
        said = [_number(label) for label in labels]
        np.testing.assert_allclose(said, axes.get_yticks(), rtol=1e-8)


def _number(label):
    """What a label says."""
    plain = label.removeprefix(r"$\mathdefault{").removesuffix("}$").replace("\N{MINUS SIGN}", "-")
    factor, times, power = plain.rpartition(r"\times ")
    exponent = power.removeprefix("10^{").removesuffix("}")
    return float(f"{factor}e{exponent}") if times else float(plain)


@pytest.mark.parametrize(("last", "scale"), [(0.008, "log"), (0.5, "linear"), (-1.0, "linear")])
def test_loss_of_a_scope_that_spans_much_has_a_logarithmic_axis(last, scale):
    results = xr.Dataset({"loss": ("step", [2.3, 1.0, last])}, coords={"step": [0, 1, 2]})
    (axes,) = scope_figure(results).axes
    assert axes.get_yscale() == scale


def rays():
    return xr.DataArray(
        [[1.0, 3.0, 2.0], [5.0, 4.0, 6.0], [2.0, np.nan, 1.0]],
        dims=("step", "distance"),
        coords={"step": [0, 10, 20], "distance": [0.5, 1.0, 2.0]},
    )


def test_band_is_from_the_least_to_the_largest():
    ends = band_of(rays())
    np.testing.assert_array_equal(ends["low"], [1.0, 4.0, np.nan])
    np.testing.assert_array_equal(ends["high"], [3.0, 6.0, np.nan])


def test_drawn_band_has_these_edges():
    axes = band(rays()[:2], label="with", colour="#D55E00")
    low, high = (line.get_ydata().tolist() for line in axes.lines)
    assert (low, high) == ([1.0, 4.0], [3.0, 6.0])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 6.0)
    assert axes.get_legend().get_texts()[0].get_text() == "with"
    assert axes.get_xlabel() == "step"


def test_two_bands_share_an_axis():
    axes = new_figure().subplots()
    assert band(rays(), axes, "one") is axes
    band(rays() + 1, axes, "other", "#000000")
    assert len(axes.collections) == 2


def test_single_step_is_marked():
    (low, _) = band(rays()[:1]).lines
    assert low.get_marker() == "."


@pytest.mark.parametrize("dimension", ["step", "distance"])
def test_band_goes_over_the_dimension_asked_for(dimension):
    assert dimension not in band_of(rays(), dimension).dims
