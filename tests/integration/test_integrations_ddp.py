"""The example of a distributed training, started as its users start it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_scope.py"


@pytest.mark.timeout(180)
def test_two_processes_agree_and_rank_0_measures(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(EXAMPLE)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 processes agree") == 1
    with xr.open_dataset(tmp_path / "scope.nc", engine="scipy") as found:
        assert found["step"].values.tolist() == [0, 10, 20]
        assert np.isfinite(found["gradient_norm"]).all()
