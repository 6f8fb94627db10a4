import numpy as np
import pytest
import xarray as xr

from normscope.cli.sweep import find_in_words

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
    (words,) = find_in_words(diagram([[0, 0, 0, 1], [0, 1, 1, 1]]))
    assert "4 diverged" in words
    assert "0.333, is at gamma 0.5 and learning rate 1." in words
    assert words.endswith(
        f"Training begins to diverge at a learning rate {BOUNDARY}; the theory (train) predicts 4 "
        "(agrees within the grid) and 0.25 (too high by a factor of at least 2.5)."
    )


BOUNDARY = "between 1 and 10 at gamma 0.5 and between 0.01 and 0.1 at gamma 2"


@pytest.mark.parametrize(
    ("rates", "judged"),
    [
        ((1.0, 0.1), "1 and 0.1, which agrees within the grid"),  # the ends belong to it
        ((9.9, 0.011), "9.9 and 0.011, which agrees within the grid"),
        (
            (0.5, 0.2),
            "0.5 (too low by a factor of at least 2) and 0.2 (too high by a factor of at least 2)",
        ),
        ((np.inf, 0.05), "inf (too high) and 0.05 (agrees within the grid)"),
    ],
)
def test_theory_is_judged_by_the_bracket(rates, judged):
    results = diagram([[0, 0, 0, 1], [0, 1, 1, 1]])
    results["critical_learning_rate"][0] = list(rates)
    (words,) = find_in_words(results)
    assert words.endswith(f"{BOUNDARY}; the theory (train) predicts {judged}.")


def test_theory_without_a_number_is_left_out():
    results = diagram([[0, 0, 0, 1], [0, 1, 1, 1]])
    results["critical_learning_rate"][0, 0] = np.nan
    (words,) = find_in_words(results)
    theory = "the theory (train) predicts 0.25 at gamma 2 (too high by a factor of at least 2.5)."
    assert words.endswith(f"{BOUNDARY}; {theory}")


@pytest.mark.parametrize(
    ("diverged", "told"),
    [
        ([[0, 0, 0, 1], [0, 1, 1, 1]], f"{BOUNDARY}."),
        (np.zeros((2, 4)), "between trainings that held and diverged."),
    ],
)
def test_theory_without_an_answer_is_said_with_its_reason(diverged, told):
    results = diagram(diverged)
    results["critical_learning_rate"][0] = np.nan
    (words,) = find_in_words(results)
    why = "The theory (train) has no answer here; normscope theory says why."
    assert words.endswith(f"{told} {why}")
    results["critical_learning_rate"].attrs["no_answer"] = "act.1: it is odd. Measure it."
    (words,) = find_in_words(results)
    why = "The theory (train) has no answer: act.1: it is odd."
    assert words.endswith(f"{told} {why}")


def test_theory_of_another_closure_is_left_out():
    results = diagram([[0, 0, 0, 1], [0, 1, 1, 1]])
    (words,) = find_in_words(results.sel(closure=["frozen"]))
    assert words.endswith(f"{BOUNDARY}.")


def test_row_without_a_boundary_is_left_out():
    (words,) = find_in_words(diagram([[0, 0, 0, 0], [0, 0, 1, 1]], theory=False))
    assert words.endswith("at a learning rate between 0.1 and 1 at gamma 2.")


def test_no_boundary_is_said():
    (words,) = find_in_words(diagram(np.zeros((2, 4))))
    assert words.endswith("hold no boundary between trainings that held and diverged.")


def test_numbers_that_are_no_diagram_have_no_words():
    assert find_in_words(xr.Dataset({"test_loss": ("seed", [1.0])})) == []


def test_every_diagram_up_to_six_has_its_words():
    one = diagram([[0, 0, 0, 1], [0, 1, 1, 1]], theory=False)
    many = xr.concat([one] * 8, xr.Variable("width", range(10, 18)))
    words = find_in_words(many)
    assert len(words) == 7
    assert words[0].startswith("width 10: ")
    assert words[-1] == "2 more diagrams are in the numbers."
