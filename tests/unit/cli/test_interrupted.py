import pytest
import xarray as xr

from normscope.cli.interrupted import resumable
from normscope.results import Store


def test_interrupt_says_what_was_kept_and_how_to_go_on(tmp_path):
    path = tmp_path / "sweep.sqlite"
    begun = "interrupted; nothing was computed yet, and the same command begins again."
    kept = f"interrupted; what is finished is kept in {path}, and the same command goes on."

    def told():
        with pytest.raises(KeyboardInterrupt) as caught, resumable(path):
            raise KeyboardInterrupt
        return str(caught.value)

    assert told() == begun
    with Store(path):
        pass
    assert told() == begun  # a file without results
    with Store(path) as store:
        store.compute("training", {}, 0, lambda: xr.Dataset({"loss": 0.5}))
    assert told() == kept
    path.write_bytes(b"no store")
    assert told() == kept  # who cannot look promises no loss
