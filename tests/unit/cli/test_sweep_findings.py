import numpy as np
import xarray as xr

from normscope.cli.sweep_findings import findings

RATES = [0.01, 0.1, 1.0, 10.0]


def diagram(diverged, theory=True):
    """Two gammas by four rates; the loss falls with the rate as far as it holds."""
    diverged = np.array(diverged, dtype=bool)[..., np.newaxis]
    loss = np.where(diverged, np.nan, 1 / np.array([1, 2, 3, 4])[:, np.newaxis])
    dims = ("gamma", "learning_rate", "seed")
    found = xr.Dataset(
        {"test_loss": (dims, loss), "diverged": (dims, diverged)},
        {"gamma": [0.5, 2.0], "learning_rate": RATES, "seed": [0]},
    )
    lines = (("closure", "gamma"), [[4.0, 0.25], [1.0, 1.0]])
    found = found.assign(critical_learning_rate=lines) if theory else found
    return found.assign_coords(closure=["train", "frozen"]) if theory else found


def test_best_cell_and_boundary_are_told():
    (words,) = findings(diagram([[0, 0, 0, 1], [0, 1, 1, 1]]))
    assert "4 diverged" in words
    assert "0.333, is at gamma 0.5 and learning rate 1." in words
    assert words.endswith(
        "Training diverges above a learning rate of about 3.16 at gamma 0.5 and 0.0316 at gamma 2; "
        "the theory (train) has 4 and 0.25, off by a factor of 1.3 and 7.9."
    )


BOUNDARY = "above a learning rate of about 3.16 at gamma 0.5 and 0.0316 at gamma 2"


def test_theory_without_a_number_is_left_out():
    results = diagram([[0, 0, 0, 1], [0, 1, 1, 1]])
    results["critical_learning_rate"][0, 0] = np.nan
    (words,) = findings(results)
    theory = "the theory (train) has 0.25 at gamma 2, off by a factor of 7.9."
    assert words.endswith(f"{BOUNDARY}; {theory}")
    results["critical_learning_rate"][0, 1] = np.nan
    (words,) = findings(results)
    assert words.endswith(f"{BOUNDARY}.")


def test_theory_of_another_closure_is_left_out():
    results = diagram([[0, 0, 0, 1], [0, 1, 1, 1]])
    (words,) = findings(results.sel(closure=["frozen"]))
    assert words.endswith(f"{BOUNDARY}.")


def test_row_without_a_boundary_is_left_out():
    (words,) = findings(diagram([[0, 0, 0, 0], [0, 0, 1, 1]], theory=False))
    assert words.endswith("Training diverges above a learning rate of about 0.316 at gamma 2.")


def test_no_boundary_is_said():
    (words,) = findings(diagram(np.zeros((2, 4))))
    assert words.endswith("hold no boundary between trainings that held and diverged.")


def test_numbers_that_are_no_diagram_have_no_words():
    assert findings(xr.Dataset({"test_loss": ("seed", [1.0])})) == []


def test_every_diagram_up_to_six_has_its_words():
    one = diagram([[0, 0, 0, 1], [0, 1, 1, 1]], theory=False)
    many = xr.concat([one] * 8, xr.Variable("width", range(10, 18)))
    words = findings(many)
    assert len(words) == 7
    assert words[0].startswith("width 10: ")
    assert words[-1] == "2 more diagrams are in the numbers."
