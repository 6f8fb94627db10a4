from normscope.layers import NORMS
from normscope.plots.names import name_of, with_norm


def test_every_normalization_has_a_name_of_its_own():
    names = [name_of(norm) for norm in NORMS]
    assert len(set(names)) == len(names)
    assert all(name != norm for name, norm in zip(names, NORMS, strict=True))


def test_unknown_normalization_goes_by_its_key():
    assert name_of("mine") == "mine"
    assert with_norm("mine") == "with mine"
