"""State dicts of models that are wrapped in another way."""

import pytest

from normscope.problem.wrappers import rename_wrapped


@pytest.mark.parametrize(
    ("names", "keys", "found"),
    [
        (["a", "module.a"], ["a", "module.a"], ["a", "module.a"]),  # the model's own names
        (["a", "module.a"], ["a"], ["a"]),  # one is missing; the other does not replace it
        (["b.module.a"], ["module.b.module.a"], ["b.module.a"]),
        (["a"], ["module.a", "_orig_mod.a"], ["module.a", "_orig_mod.a"]),  # either could be it
        (["_orig_mod.a"], ["module._orig_mod.a", "n_averaged"], ["_orig_mod.a", "n_averaged"]),
    ],
)
def test_keys_of_wrapped_models_are_renamed_unless_it_is_unclear_which(names, keys, found):
    assert rename_wrapped({key: key for key in keys}, names) == dict(zip(found, keys, strict=True))
