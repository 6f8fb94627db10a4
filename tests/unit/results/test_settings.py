import pytest
import xarray as xr

from normscope.report.narrative import factor_of
from normscope.results.settings import settings_of


@pytest.mark.parametrize("settings", ["from elsewhere", "[1]", "3", 7, ""])
def test_settings_from_elsewhere_are_none(settings):
    found = xr.Dataset(attrs={"settings": settings})
    assert settings_of(found) == {}
    assert factor_of([found]) is None


def test_settings_are_those_of_the_trainings():
    found = xr.Dataset(attrs={"settings": '{"divergence_factor": 50, "norm": "batch"}'})
    assert settings_of(found)["norm"] == "batch"
    assert factor_of([found, found]) == 50.0
