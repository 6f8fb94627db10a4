"""The store's contract, on a file and in memory."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import normscope
from normscope.errors import ArgumentTypeError, InputError, StateError, UnknownNameError
from normscope.results import State, Store, record_key

PARAMETERS = {"learning_rate": 0.1, "norm": "batch"}


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "runs.sqlite" if request.param == "file" else ":memory:") as opened:
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


def result(value: float = 1.0) -> xr.Dataset:
    return xr.Dataset({"loss": ("step", [value, value / 2])}, coords={"step": [0, 10]})


def chunk(step: int) -> xr.Dataset:
    return xr.Dataset(
        {"loss": ("step", [1 / (1 + step)]), "shift": (("step", "layer"), [[step, 2.0 * step]])},
        coords={"step": [step], "layer": ["first", "second"]},
    )


def started(store: Store, **changes: object) -> str:
    key = store.add("demo", {**PARAMETERS, **changes}, seed=0)
    store.start(key)
    return key


# Records and states


def test_added_record_is_pending_and_complete(store: Store) -> None:
    key = store.add("demo", PARAMETERS, seed=3, revision=2)
    record = store.get(key)
    assert (record.key, record.experiment, record.seed) == (key, "demo", 3)
    assert (record.revision, record.version) == (2, normscope.__version__)
    assert record.parameters == PARAMETERS
    assert record.state is State.PENDING
    assert (record.attempts, record.error, record.seconds) == (0, None, None)
    assert key == record_key("demo", PARAMETERS, 3, 2)


def test_adding_again_changes_nothing(store: Store) -> None:
    key = started(store)
    store.finish(key, result())
    assert store.add("demo", dict(reversed(PARAMETERS.items())), seed=0) == key
    assert store.get(key).state is State.FINISHED
    assert len(store.select()) == 1


def test_finished_record_has_its_dataset_and_duration(store: Store) -> None:
    key = started(store)
    store.finish(key, result(4.0))
    record = store.get(key)
    assert record.state is State.FINISHED
    assert record.attempts == 1
    assert record.seconds is not None
    assert 0 < record.seconds < 60
    assert record.dataset.identical(result(4.0))


def test_divergence_is_a_result(store: Store) -> None:
    key = started(store)
    store.finish(key, result(np.inf), state="diverged")
    assert store.get(key).state is State.DIVERGED
    assert store.get(key).dataset.identical(result(np.inf))


def test_failure_keeps_its_text_and_may_be_tried_again(store: Store) -> None:
    key = started(store)
    store.fail(key, "the net caught fire \ud800")
    record = store.get(key)
    assert (record.state, record.error) == (State.FAILED, "the net caught fire \\ud800")
    store.start(key)
    record = store.get(key)
    assert (record.state, record.attempts, record.error) == (State.RUNNING, 2, None)


def test_released_record_is_pending_with_its_chunks_until_it_is_started(store: Store) -> None:
    key = started(store)
    store.append(key, chunk(0))
    store.release(key)
    assert (store.get(key).state, store.get(key).attempts) == (State.PENDING, 1)
    assert store.get(key).dataset.identical(chunk(0))
    store.start(key)
    with pytest.raises(StateError, match="running and has no data yet"):
        _ = store.get(key).dataset


MOVES: dict[str, Callable[[Store, str], None]] = {
    "start": lambda store, key: store.start(key),
    "append": lambda store, key: store.append(key, chunk(0)),
    "finish": lambda store, key: store.finish(key, result()),
    "fail": lambda store, key: store.fail(key, "no"),
    "release": lambda store, key: store.release(key),
}
ALLOWED = {
    State.PENDING: {"start"},
    State.RUNNING: {"append", "finish", "fail", "release"},
    State.FINISHED: set(),
    State.DIVERGED: set(),
    State.FAILED: {"start"},
}


def in_state(store: Store, state: State) -> str:
    key = store.add("demo", {"state_wanted": str(state)}, seed=0)
    if state is not State.PENDING:
        store.start(key)
    if state.has_result:
        store.finish(key, result(), state=state)
    if state is State.FAILED:
        store.fail(key, "no")
    return key


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", State)
def test_only_the_contracts_moves_are_possible(store: Store, state: State, move: str) -> None:
    key = in_state(store, state)
    if move in ALLOWED[state]:
        MOVES[move](store, key)
        return
    with pytest.raises(StateError, match=f"is {state}; only a record that is"):
        MOVES[move](store, key)
    assert store.get(key).state is state


@pytest.mark.parametrize("move", MOVES)
def test_unknown_key_is_told(store: Store, move: str) -> None:
    with pytest.raises(UnknownNameError, match="holds no record with the key 'absent'"):
        MOVES[move](store, "absent")


def test_finish_refuses_other_states(store: Store) -> None:
    key = started(store)
    with pytest.raises(InputError, match="'finished' or 'diverged', got 'failed'"):
        store.finish(key, result(), state="failed")


def test_finish_needs_data(store: Store) -> None:
    key = started(store)
    with pytest.raises(StateError, match="has no data yet"):
        store.finish(key)
    assert store.get(key).state is State.RUNNING


# Chunks


def test_chunks_are_readable_while_running_and_become_the_result(store: Store) -> None:
    key = started(store)
    for step in range(5):
        store.append(key, chunk(step))
        expected = xr.concat([chunk(each) for each in range(step + 1)], "step", data_vars="minimal")
        assert store.get(key).dataset.identical(expected)
    store.finish(key)
    assert store.get(key).dataset.identical(expected)


def test_whole_result_takes_the_place_of_the_chunks(store: Store) -> None:
    key = started(store)
    store.append(key, chunk(0))
    store.finish(key, result())
    assert store.get(key).dataset.identical(result())


def test_new_attempt_begins_without_chunks(store: Store) -> None:
    key = started(store)
    store.append(key, chunk(0))
    store.fail(key, "no")
    assert store.get(key).dataset.identical(chunk(0))
    store.start(key)
    store.append(key, chunk(7))
    assert store.get(key).dataset["step"].values.tolist() == [7]


def test_chunk_that_does_not_fit_is_refused_and_leaves_the_others(store: Store) -> None:
    key = started(store)
    store.append(key, chunk(0))
    with pytest.raises(InputError, match="'loss' does not fit the chunks before it"):
        store.append(key, chunk(1).assign(loss=("step", np.float32([1]))))
    store.append(key, chunk(2))
    assert store.get(key).dataset["step"].values.tolist() == [0, 2]


# Queries


def grid(store: Store) -> list[str]:
    settings = [(rate, norm) for rate in (0.1, 1.0) for norm in ("none", "batch")]
    keys = [
        store.add("grid", {"learning_rate": rate, "norm": norm, "affine": True}, seed)
        for rate, norm in settings
        for seed in (0, 1)
    ]
    store.add("other", {"learning_rate": 0.1}, 0)
    return keys


def test_select_keeps_what_meets_every_condition(store: Store) -> None:
    keys = grid(store)
    store.start(keys[3])
    assert len(store.select()) == 9
    assert [record.key for record in store.select("grid")] == keys
    assert len(store.select(learning_rate=0.1)) == 5
    assert len(store.select("grid", seed=np.int64(1), norm="batch")) == 2
    assert [record.key for record in store.select(state="running")] == [keys[3]]
    assert store.select("absent") == []
    assert store.select(depth=3) == []


def test_select_compares_numbers_by_value_but_not_switches(store: Store) -> None:
    grid(store)
    assert len(store.select("grid", learning_rate=1)) == 4
    assert len(store.select("grid", affine=True)) == 8
    assert store.select("grid", affine=1) == []


def test_select_refuses_an_unknown_state(store: Store) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'finished'"):
        store.select(state="finish")


def test_counts_name_every_state(store: Store) -> None:
    keys = grid(store)
    store.start(keys[0])
    store.start(keys[1])
    store.finish(keys[1], result())
    assert store.counts("grid") == {
        State.PENDING: 6,
        State.RUNNING: 1,
        State.FINISHED: 1,
        State.DIVERGED: 0,
        State.FAILED: 0,
    }
    assert store.counts()[State.PENDING] == 7


# Transactions


def test_transaction_keeps_all_or_nothing(store: Store) -> None:
    key = started(store)
    store.append(key, chunk(0))

    def interrupted() -> None:
        with store.transaction():
            store.append(key, chunk(1).assign(extra=("step", [1])))
            store.add("another", {}, 0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.select("another") == []
    store.append(key, chunk(2).assign(extra=("step", [1.5])))  # the form of extra is forgotten too
    with pytest.raises(InputError, match="does not fit"):  # that of loss is not
        store.append(key, chunk(2).assign(loss=("step", [1])))
    with store.transaction():
        store.finish(key)
        store.add("another", {}, 0)
    assert store.counts()[State.FINISHED] == 1
    assert len(store.select("another")) == 1


def test_failed_call_inside_a_transaction_undoes_it_all(store: Store) -> None:
    key = started(store)

    def finished_and_started() -> None:
        with store.transaction():
            store.finish(key, result())
            store.start(key)

    with pytest.raises(StateError):
        finished_and_started()
    assert store.get(key).state is State.RUNNING


# compute


def test_compute_runs_once(store: Store) -> None:
    calls: list[int] = []

    def function() -> xr.Dataset:
        calls.append(1)
        return result(len(calls))

    for _ in range(3):
        assert store.compute("demo", PARAMETERS, 0, function).identical(result(1))
    store.compute("demo", PARAMETERS, 1, function)
    store.compute("demo", PARAMETERS, 0, function, revision=2)
    assert len(calls) == 3


def test_compute_gives_the_same_the_first_time_and_later(store: Store) -> None:
    def function() -> xr.Dataset:
        dataset = result()
        dataset["loss"].encoding["dtype"] = "float32"
        return dataset

    first = store.compute("demo", PARAMETERS, 0, function)
    second = store.compute("demo", PARAMETERS, 0, function)
    assert first.identical(second)
    assert first["loss"].encoding == second["loss"].encoding == {}


def test_compute_keeps_divergence(store: Store) -> None:
    def diverged(dataset: xr.Dataset) -> bool:
        return not bool(np.isfinite(dataset["loss"]).all())

    for value in (1.0, np.inf):
        store.compute("demo", {"value": str(value)}, 0, lambda: result(value), diverged=diverged)  # noqa: B023
    assert [record.state for record in store.select()] == [State.FINISHED, State.DIVERGED]
    store.compute("demo", {"value": "inf"}, 0, lambda: pytest.fail("was stored"))


def test_compute_records_a_failure_and_tries_again(store: Store) -> None:
    def broken() -> xr.Dataset:
        raise ZeroDivisionError("of nothing")

    with pytest.raises(ZeroDivisionError, match="of nothing"):
        store.compute("demo", PARAMETERS, 0, broken)
    (record,) = store.select()
    assert (record.state, record.error) == (State.FAILED, "ZeroDivisionError: of nothing")
    assert store.compute("demo", PARAMETERS, 0, result).identical(result())
    assert (store.get(record.key).state, store.get(record.key).attempts) == (State.FINISHED, 2)


def test_compute_records_a_result_that_cannot_be_kept(store: Store) -> None:
    with pytest.raises(ArgumentTypeError, match=r"must be an xarray.Dataset, got float"):
        store.compute("demo", PARAMETERS, 0, lambda: 1.0)  # type: ignore[arg-type,return-value]
    assert store.select()[0].state is State.FAILED


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_compute_interrupted_is_pending(store: Store, interruption: type[BaseException]) -> None:
    def interrupted() -> xr.Dataset:
        raise interruption

    with pytest.raises(interruption):
        store.compute("demo", PARAMETERS, 0, interrupted)
    (record,) = store.select()
    assert (record.state, record.attempts, record.error) == (State.PENDING, 1, None)


def test_compute_of_itself_is_told(store: Store) -> None:
    def circular() -> xr.Dataset:
        return store.compute("demo", PARAMETERS, 0, circular)

    with pytest.raises(StateError, match="is running; only a record that is pending or failed"):
        store.compute("demo", PARAMETERS, 0, circular)


def test_compute_inside_a_transaction_is_refused(store: Store) -> None:
    with pytest.raises(StateError, match="cannot be part of a transaction"), store.transaction():
        store.compute("demo", PARAMETERS, 0, result)
    assert store.select() == []


def test_compute_in_threads_runs_each_once(store: Store) -> None:
    calls: list[int] = []
    found: list[xr.Dataset] = []

    def work(seed: int) -> None:
        def function() -> xr.Dataset:
            calls.append(seed)
            return result(float(seed))

        found.append(store.compute("demo", PARAMETERS, seed, function).assign_attrs(seed=seed))

    threads = [threading.Thread(target=work, args=(index % 5,)) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(calls) == list(range(5))
    assert len(found) == 20
    assert all(each.drop_attrs().identical(result(each.attrs["seed"])) for each in found)
    assert store.counts()[State.FINISHED] == 5


# The file


def test_records_survive_closing(path: Path) -> None:
    with Store(path) as store:
        key = started(store)
        store.finish(key, result())
    with Store(path) as store:
        assert store.get(key).dataset.identical(result())
        assert store.get(key).seconds is not None
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no log, no lock is left


def test_running_records_are_pending_for_the_next_writer(path: Path) -> None:
    with Store(path) as store:
        key = started(store)
        store.append(key, chunk(0))
    with Store(path, read_only=True) as reader:
        assert reader.get(key).state is State.RUNNING
        assert reader.get(key).dataset.identical(chunk(0))
    with Store(path) as store:
        assert (store.get(key).state, store.get(key).attempts) == (State.PENDING, 1)
        assert store.get(key).dataset.identical(chunk(0))
        store.start(key)
        store.append(key, chunk(5))
        store.finish(key)
        assert store.get(key).attempts == 2
        assert store.get(key).dataset.identical(chunk(5))


def test_reader_sees_what_is_committed(path: Path) -> None:
    with Store(path) as store, Store(path, read_only=True) as reader:
        key = started(store)
        with store.transaction():
            store.finish(key, result())
            assert reader.get(key).state is State.RUNNING
        assert reader.get(key).dataset.identical(result())


def test_reader_changes_nothing(path: Path) -> None:
    with Store(path) as store:
        key = store.add("demo", PARAMETERS, 0)
        store.compute("demo", PARAMETERS, 1, result)
    before = path.read_bytes()
    with Store(path, read_only=True) as reader:
        for move in MOVES.values():
            with pytest.raises(StateError, match="opened with read_only=True"):
                move(reader, key)
        with pytest.raises(StateError, match="cannot compute it; open it without"):
            reader.compute("demo", PARAMETERS, 0, result)
        stored = reader.compute("demo", PARAMETERS, 1, lambda: pytest.fail("was stored"))
        assert stored.identical(result())
    assert path.read_bytes() == before


def beside(path: Path) -> list[str]:
    return sorted(each.name.removeprefix(path.name) for each in path.parent.iterdir())


def test_reader_leaves_the_folder_as_it_was(path: Path) -> None:
    with Store(path) as store:
        store.compute("demo", PARAMETERS, 0, result)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with Store(path, read_only=True) as reader:
        assert len(reader.select()) == 1
        assert beside(path) == ["", "-shm", "-wal"]  # of SQLite's making
    assert beside(path) == [""]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_reader_leaves_the_log_to_a_writer_that_came_later(path: Path) -> None:
    with Store(path) as store:
        store.compute("demo", PARAMETERS, 0, result)
    reader = Store(path, read_only=True)
    assert len(reader.select()) == 1
    with Store(path) as store:
        reader.close()  # before anything was written: the log is empty and in use
        assert beside(path) == ["", "-lock", "-shm", "-wal"]
        store.compute("demo", PARAMETERS, 1, result)
        with Store(path, read_only=True) as late:
            assert len(late.select()) == 2
        assert beside(path) == ["", "-lock", "-shm", "-wal"]
        assert len(store.select()) == 2
    assert beside(path) == [""]


def test_reader_leaves_the_log_to_another_reader(path: Path) -> None:
    with Store(path) as store:
        store.compute("demo", PARAMETERS, 0, result)
    first = Store(path, read_only=True)
    with Store(path, read_only=True) as second:
        first.close()
        assert beside(path) == ["", "-shm", "-wal"]
        with Store(path) as store:
            store.compute("demo", PARAMETERS, 1, result)
            assert len(second.select()) == 2


def test_store_in_memory_cannot_be_read_only() -> None:
    with pytest.raises(InputError, match="begins empty"):
        Store(":memory:", read_only=True)


def test_folder_is_made(tmp_path: Path) -> None:
    with Store(tmp_path / "a" / "b" / "runs.sqlite") as store:
        store.add("demo", PARAMETERS, 0)
    assert (tmp_path / "a" / "b" / "runs.sqlite").is_file()


def test_strange_file_names_work(tmp_path: Path) -> None:
    path = tmp_path / "a #1?mode=ro&x=%20 é.sqlite"
    with Store(path) as store:
        store.add("demo", PARAMETERS, 0)
    with Store(path, read_only=True) as store:
        assert len(store.select()) == 1


def test_closed_store_says_so(store: Store) -> None:
    record = store.get(started(store))
    store.close()
    store.close()
    with pytest.raises(StateError, match="is closed; open it again"):
        store.select()
    with pytest.raises(StateError, match="is closed; open it again"):
        _ = record.dataset


def test_store_left_behind_gives_its_file_back(path: Path) -> None:
    store = Store(path)
    store.add("demo", PARAMETERS, 0)
    del store
    gc.collect()
    with Store(path) as store:
        assert len(store.select()) == 1


def test_store_cannot_be_pickled(store: Store) -> None:
    with pytest.raises(ArgumentTypeError, match="cannot be sent to another process"):
        pickle.dumps(store)


def test_forked_child_is_refused_and_does_no_harm(path: Path) -> None:
    with Store(path) as store:
        store.add("demo", PARAMETERS, 0)
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                store.select()
            except StateError as error:
                store.close()
                os._exit(7 if f"opened by process {os.getppid()}" in str(error) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(StateError, match="open for writing in this process"):
            Store(path)
        store.add("demo", PARAMETERS, 1)
    with Store(path, read_only=True) as reader:
        assert len(reader.select()) == 2


def test_repr_names_the_file(path: Path) -> None:
    with Store(path) as store:
        assert repr(store) == f"Store({str(path)!r})"
    with Store(path, read_only=True) as store:
        assert repr(store) == f"Store({str(path)!r}, read_only=True)"
    assert repr(Store(":memory:")) == "Store(':memory:')"
