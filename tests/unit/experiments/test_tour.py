"""The tour at quick scale: one run serves all tests."""

import math
import re

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.data import load
from normscope.experiments import EXPERIMENTS, run
from normscope.experiments.tour.claims import tour_claims
from normscope.experiments.tour.page import is_tour, record_of, tour_report, with_record
from normscope.experiments.tour.parts import LOSS, Net, training
from normscope.experiments.tour.summary import (
    HEADS,
    LEGEND,
    findings,
    headline,
    summary_rows,
    summary_table,
)
from normscope.experiments.tour.tour import (
    COSTS,
    WeightedProgress,
    seconds_in_store,
    total_cost,
)
from normscope.learning_rate import max_learning_rate
from normscope.models import build
from normscope.progress_bar import Lines
from normscope.results import Store

SETTINGS = EXPERIMENTS["tour"].settings("quick", {})


@pytest.fixture(scope="module")
def events():
    return []


@pytest.fixture(scope="module")
def result(events):
    return run("tour", progress=events.append)


@pytest.fixture(scope="module")
def results(result):
    return result.dataset


def test_progress_counts_every_part_by_its_cost(result, events):
    kinds = [event.stage.partition(":")[0] for event in events]
    assert [kind for kind in COSTS if kind not in kinds] == []
    done = [event.done for event in events]
    assert done[0] == 0
    assert done == sorted(done)
    whole = total_cost(len(SETTINGS["norms"]), SETTINGS["seeds"])
    assert {event.total for event in events} == {whole}
    assert done[kinds.index("phase diagram")] == whole - COSTS["phase diagram"]  # the last part
    assert done[-1] < whole


def test_parts_found_in_a_store_count_as_kept():
    events = []
    weighted = WeightedProgress(events.append, 5 * COSTS["landscape"])
    for seed, is_stored in enumerate((True, True, False, True, False)):
        with weighted.part("landscape", f"batch, seed {seed}") as send:
            if not is_stored:
                send("step 1")
    cost = COSTS["landscape"]
    assert [(event.done, event.kept) for event in events] == [
        (2 * cost, 2 * cost),
        (4 * cost, 3 * cost),
    ]
    assert (events[0].stage, events[0].detail) == ("landscape: batch, seed 2", "step 1")


def test_time_left_is_sane_whether_or_not_parts_are_in_a_store(capsys):
    now = [0.0]
    log = Lines("demo", lambda: now[0])
    whole = 10 * (COSTS["learning rate"] + COSTS["training"])
    weighted = WeightedProgress(log.show, whole)

    def work(send):
        send()
        now[0] += 4.0
        log.print_if_due()

    for seed in range(10):  # five of them are there already, and take no time
        with weighted.part("learning rate", f"batch, seed {seed}") as send:
            for _ in range(9) if seed > 4 else ():
                work(send)
    for seed in range(10):
        with weighted.part("training", f"batch, seed {seed}") as send:
            work(send)
    lines = capsys.readouterr().err.splitlines()
    assert "45 % done (45 % by earlier runs)" in lines[0]
    left = re.compile(r"\((\d+) s, about (\d+) s left\)$")
    found = [tuple(map(int, each.groups())) for line in lines if (each := left.search(line))]
    assert len(found) > 5
    for seconds, rest in found:
        assert (220 - seconds) / 2 <= rest <= 2 * (220 - seconds)


def test_parts_found_between_computed_ones_take_no_time():
    """A store of the first seed, then a tour of three: every third part is there."""
    now, left, counts = [0.0], [], []
    log = Lines("demo", lambda: now[0])

    def note(event):
        log.show(event)
        counts.append(event.count)
        left.append(log._left.seconds)

    weighted = WeightedProgress(note, 9 * COSTS["landscape"])
    for norm in ("none", "batch", "layer"):
        for seed in range(3):
            with weighted.part("landscape", f"{norm}, seed {seed}") as send:
                if seed:
                    send()
                    now[0] += 30.0
    assert counts[1::2] == [
        "22 % done (11 % by earlier runs)",
        "55 % done (22 % by earlier runs)",
        "88 % done (33 % by earlier runs)",
    ]
    # what is known to be left: seven, five, four, two and one part
    assert left[1:] == pytest.approx([210.0, 150.0, 120.0, 60.0, 30.0], abs=3)


def test_limit_is_the_advisors_on_the_same_net(results):
    x, y = load("digits").train
    model = build("fully_connected", norm="layer", seed=0, input_shape=(1, 8, 8), depth=3, width=24)
    options = {"batch_size": 64, "effort": "thorough", "objective": "half_limit"}
    advice = max_learning_rate(model, LOSS, (x, y), momentum=0.9, **options)
    own = results.sel(norm="layer", seed=0)
    assert float(own["limit"]) == advice.limit
    assert (float(own["stable"]), float(own["unstable"])) == advice.verified
    assert math.isnan(own["theory"]) == (advice.theory is None)


def test_landscape_is_looked_at_with_one_rate_for_all(results):
    assert float(results["common_rate"]) == float(results["recommended"].min())
    assert list(results["step"].values) == [0, 2, 4]
    low, high = results["loss_low"], results["loss_high"]
    assert (low <= high).all()
    # at the first step of the ray the loss is that of the training's first batch
    assert np.isfinite(results["ray_loss"].isel(step=0)).all()


def test_every_net_begins_with_the_same_weights_whatever_its_norm():
    net = Net("digits", 24, 3, 64, 0.9)
    plain, batch = (net.model(norm, 4) for norm in ("none", "batch"))
    assert torch.equal(plain.head.weight, batch.head.weight)


def test_training_at_half_the_limit_is_kept_to_its_end(results):
    assert results["training_loss"].dims == ("norm", "seed", "training_step")
    finished = results["outcome"] == "finished"
    assert results["training_loss"].notnull().all("training_step").where(finished, True).all()
    assert (results["test_accuracy"].where(finished, 1.0) > 0.1).all()


def test_exact_theorems_hold_on_every_layer(results):
    exact = results["form"].values == "exact"
    assert exact.sum() > 20
    assert not results["refuted"].values[exact].any()
    assert set(results["norm_layer"].values) == {"features.1", "features.4"}


def test_curvature_of_a_net_without_statistics_is_the_same_in_every_mode(results):
    modes = results["lambda_max"].sel(norm="none")
    assert float(modes.sel(mode="eval")) == pytest.approx(float(modes.sel(mode="train")), rel=0.02)
    batch = results["lambda_max"].sel(norm="batch")
    assert float(batch.sel(mode="eval")) != pytest.approx(float(batch.sel(mode="train")), rel=0.02)


def test_interrupted_tour_resumes_and_ends_the_same(results, tmp_path):
    path = tmp_path / "kept.sqlite"

    def interrupt(event):
        if event.stage.startswith("curvature: "):
            raise KeyboardInterrupt

    with Store(path) as store, pytest.raises(KeyboardInterrupt):
        run("tour", store=store, progress=interrupt)
    with Store(path) as store:
        before = len(store.select("tour part", state="finished"))
        again = run("tour", store=store)
        assert 0 < before < len(store.select("tour part", state="finished"))
        assert seconds_in_store(store, SETTINGS) == pytest.approx(
            sum(record.seconds for record in store.select())
        )
        assert seconds_in_store(store, {**SETTINGS, "seed": 1}) == 0
        assert seconds_in_store(store, {**SETTINGS, "width": 25}) == 0
    xr.testing.assert_identical(again.dataset, results)


def test_noise_comes_from_the_seed():
    """A second run gives the same numbers, whatever was drawn before it."""
    net = Net("digits", 8, 3, 64, 0.9)
    found = []
    for before in (1, 2):
        torch.manual_seed(before)
        found.append(training(net, "noisy", 0, 0.1, 3))
    xr.testing.assert_identical(*found)


def test_numbers_keep_how_they_were_made(result, tmp_path):
    kept = with_record(result, "normscope demo", earlier=7.0)
    kept.to_netcdf(tmp_path / "demo.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "demo.nc", engine="scipy") as opened:
        read = opened.load()
    assert is_tour(read)
    assert not is_tour(read.drop_vars("theory_says"))
    assert record_of(read) == {
        "settings": result.to_dict()["settings"],
        "versions": result.versions,
        "command": "normscope demo",
        "seconds": pytest.approx(result.seconds + 7),
        "seconds_note": "7 of them before it was interrupted",
    }
    bare = record_of(result.dataset)  # as a library's user has them
    assert list(bare) == ["settings"]
    assert bare["settings"]["width"] == SETTINGS["width"]


def test_summary_has_a_row_for_each_normalization(results):
    rows = summary_rows(results)
    assert [row["normalization"] for row in rows] == ["no normalization", "BatchNorm", "LayerNorm"]
    assert rows[1]["limit"] == float(results["limit"].sel(norm="batch").median())
    assert all(
        value is None or math.isfinite(value) for row in rows for value in list(row.values())[1:]
    )


def test_table_for_readers_has_short_numbers_and_fits_a_terminal(results):
    whole, short = summary_rows(results), summary_table(results)
    for full, row in zip(whole, short, strict=True):
        assert row["limit"] == pytest.approx(full["limit"], rel=0.005)
        assert len(f"{row['limit']:.4g}") <= 6
    assert [" ".join(head.split()) for head in short[0]] == list(HEADS.values())
    widths = [max(map(len, [*head.splitlines(), "0.00123"])) for head in list(short[0])[1:]]
    assert len("no normalization") + sum(widths) + 3 * (len(widths) + 1) <= 120
    assert all(head in LEGEND.lower() for head in ("limit", "accuracy", "shift cosine"))


def test_every_part_has_one_sentence_with_a_number(results):
    found = findings(results)
    assert all(each.endswith(".") and len(each) < 250 for each in found.values())
    assert all(re.search(r"\d", each) for each in found.values())
    limit = results["limit"].median("seed")
    assert f"{float(f'{float(limit.max()):.2g}'):g}" in headline(results)


def test_report_has_a_section_for_each_part_with_its_picture(result):
    report = tour_report(with_record(result, "normscope demo"))
    parts = findings(result.dataset)
    *sections, made = report.sections
    assert [section.paragraphs for section in sections] == [[each] for each in parts.values()]
    assert all(len(section.tables) == 1 for section in sections)
    pictures = dict(zip(parts, (len(section.pictures) for section in sections), strict=True))
    assert pictures.pop("landscape") == 2  # bands, roughness
    assert set(pictures.values()) == {1}
    assert all(picture.text for section in sections for picture in section.pictures)
    assert report.summary is not None
    assert len(report.summary.rows) == len(report.cards) == 3
    assert report.asked.endswith("a fully connected net of 3 layers of width 24 on digits.")
    assert report.overview is sections[0].pictures[0]  # drawn once, on top
    assert report.first_sentence == headline(result.dataset)
    folded = [section.title for section in sections if section.folded]
    assert folded == ["Theorems on the net's own layers"]
    assert sections[0].tables[0].folded  # it has a row for each seed
    assert made.command == "normscope demo"
    judged = [claim for section in sections for claim in section.claims]
    assert judged == list(result.claims)  # each beside its evidence


def test_claims_name_the_bare_net_as_the_page_does_and_say_which_mean(results):
    measured = {claim.text: claim.measured for claim in tour_claims(results)}
    assert not any("standard" in words for words in measured.values())
    (distance,) = (words for text, words in measured.items() if "l2 difference" in text)
    assert "no normalization" in distance
    assert distance.endswith("(geometric means over the steps and all layers but the first)")


def test_one_normalization_alone_has_findings_and_no_comparison(results):
    alone = results.sel(norm=["layer"])
    found = [headline(alone), *findings(alone).values()]
    assert not any("smallest" in sentence for sentence in found)
    assert len(tour_report(alone).cards) == 1
    assert not any("BatchNorm takes" in claim.text for claim in tour_claims(alone))
