import numpy as np
import pytest
import xarray as xr

from normscope.plots.names import _DIMENSIONS, dimension_name, quantity_name
from normscope.probes import PROBES
from normscope.report import Report, dataset_section, render
from normscope.report.datasets import scope_html, scope_table, write_scope_report
from normscope.report.narrative import describe_scope, scope_cards
from normscope.report.pictures import scope_picture


def scope(loss, **variables):
    steps = np.arange(len(loss)) * 10
    return xr.Dataset(
        {"loss": ("step", np.array(loss)), **variables},
        {"step": steps, "distance": [0.5, 1.0]},
        {"probes": "loss", "model": "net"},
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ([2.0, 1.0], "the loss went from 2 to 1."),
        ([2.3, 5, 1e9, np.nan, np.inf], "went from 2.3 to 1e+09, then not finite from step 30."),
        ([2.0, np.inf], "the loss was 2, then not finite from step 10."),
        ([2.0, np.nan, 1.0], "went from 2 to 1, with 1 step in between not finite."),
        ([np.nan, np.inf], "the loss was never finite."),
    ],
)
def test_divergence_is_told(loss, words):
    assert describe_scope(scope(loss))[0].endswith(words)


def test_table_has_the_last_value_and_counts_what_is_not_finite():
    dataset = scope(
        [2.0, 1e9, np.nan],
        smooth=("step", [1.0, np.nan, np.nan]),
        steep=("step", [1.0, 2.0, np.inf]),
        rare=("step", [4.0, np.nan, 5.0]),
    )
    rows = {row[0].key: row[2:] for row in scope_table(dataset).rows}
    assert rows["loss"] == (2.0, "nan", 2.0, 1e9, 1)
    assert rows["smooth"] == (1.0, "nan", 1.0, 1.0, 1)  # not measured at step 10, lost at step 20
    assert rows["steep"] == (1.0, np.inf, 1.0, 2.0, 1)
    assert rows["rare"] == (4.0, 5.0, 4.0, 5.0, 0)


def test_rays_that_are_not_finite_are_counted():
    rays = np.array([[1.0, 3.0], [1.0, np.inf], [2.0, np.nan], [np.nan, np.nan]])
    found = describe_scope(scope([1.0, 1.0, 1.0, 1.0], ray_loss=(("step", "distance"), rays)))
    assert found[1] == (
        "Along the gradient the loss varied by 2 in the median, 2 at most; at 2 of 3 steps it was "
        "not finite there."
    )
    lost = describe_scope(scope([1.0, np.nan], ray_loss=(("step", "distance"), rays[1:3])))
    assert lost[1] == "Along the gradient, at 2 of 2 steps it was not finite there."


def test_variables_are_shown_in_words_with_their_names_once():
    norms = (("step", "layer"), np.ones((2, 2)))
    dataset = scope([2.0, 1.0], gradient_norm=norms).assign_coords(layer=["0", "features.3"])
    page = render(Report("t", describe_scope(dataset), [dataset_section(dataset, "Measurements")]))
    table = page.partition("<tbody>")[2].partition("</tbody>")[0]
    assert "gradient norm <small><code>gradient_norm</code></small>" in table
    assert page.replace("_by_step", "").count("gradient_norm") == 1
    assert "loss <small>" not in table  # a name that is the same is not said twice
    assert "<td>layers</td>" in table
    assert "gradient norm (gradient_norm)" in scope_html(dataset, "caption")


def test_every_quantity_and_dimension_of_the_probes_has_words():
    for name in PROBES:
        variables = PROBES[name]().variables
        for variable, dims in variables.items():
            assert "_" not in quantity_name(variable)
            for each in dims:
                assert dimension_name(each) == _DIMENSIONS[each]


def test_caption_says_what_a_band_is_where_there_is_one():
    rays = (("step", "distance"), np.array([[1.0, 3.0], [1.0, 2.0]]))
    caption = scope_picture(scope([2.0, 1.0], ray_loss=rays)).caption
    assert caption.endswith(
        "A band reaches from the smallest to the largest value along the gradient, at 0.5 to 1 "
        "times the learning rate."
    )
    assert "band" not in scope_picture(scope([2.0, 1.0])).caption


def test_report_of_a_scope_names_its_labels(tmp_path):
    measured = scope([2.0, 1.0]).assign_coords(seed=3)
    path = write_scope_report(measured, tmp_path / "scope.html", further={"width": 64, "seed": 0})
    page = path.read_text(encoding="utf-8")
    assert "<dt>width</dt><dd>64</dd>" in page
    assert "<dt>seed</dt><dd>3</dd>" in page  # the scope's own


def test_cards_of_a_scope_have_the_last_values():
    dataset = scope(
        [2.0, 1.0, 0.5],
        effective_smoothness=("step", [4.0, 8.0, np.nan]),  # not measured at the last step
        top_eigenvalue=("step", [np.nan] * 3),
    )
    found = [(card.label, card.value, card.note) for card in scope_cards(dataset)]
    assert found == [
        ("loss", "0.5", "at step 20, from 2"),
        ("roughness (beta)", "8", "at step 10, from 4, larger is rougher"),
    ]
    diverged = scope_cards(scope([2.0, np.nan]))
    assert [(card.value, card.note) for card in diverged] == [("not finite", "at step 10, from 2")]
    assert scope_cards(scope([2.0]))[0].note == "at step 0"
