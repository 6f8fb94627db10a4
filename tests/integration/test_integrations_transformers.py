"""The callback in real trainings by a Hugging Face Trainer; models from configurations alone."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.errors import InputError, StateError
from normscope.results import Store

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore"),  # the package's own
]


def callback(*given, **options):
    from normscope.integrations.transformers import ScopeCallback

    return ScopeCallback(*given, **options)


def language_model():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))  # with dropout


def trained(scope, folder, steps=6, **options):
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(3)
    model = language_model()
    texts = torch.arange(64).reshape(-1, 1).add(torch.arange(8)) % 11
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    callbacks = [] if scope is None else [scope]
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    trainer.train()
    return model, trainer


def left(model, trainer):
    times = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime")
    times += ("eval_samples_per_second", "eval_steps_per_second")
    logs = [
        {name: value for name, value in entry.items() if name not in times}
        for entry in trainer.state.log_history
    ]
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    optimizer = trainer.optimizer.state_dict()
    return repr([state, optimizer, torch.get_rng_state().tolist(), logs])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"bf16": True},
        {"eval_strategy": "steps", "eval_steps": 2},
    ],
    ids=["plain", "accumulated", "bf16", "evaluated"],
)
def test_training_by_a_trainer_ends_in_the_same_bits(options, tmp_path):
    plain = left(*trained(None, tmp_path, **options))
    scope = callback(probes="standard", every=2)
    model, trainer = trained(scope, tmp_path, **options)
    assert left(model, trainer) == plain
    assert scope.results["step"].values.tolist() == [0, 2, 4]
    assert np.isfinite(scope.results["gradient_norm"]).all()
    assert not model._forward_pre_hooks
    assert scope.plot().axes


def test_loss_is_the_one_the_trainer_descends(tmp_path):
    scope = callback(probes="gradient_norms", every=1)
    _, trainer = trained(scope, tmp_path)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    # other dropout masks than the training's: near, not equal
    assert np.allclose(scope.results["loss"], logged, rtol=0.15)
    rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
    assert np.allclose(scope.results["learning_rate"], rates)


def test_accumulation_looks_at_the_mean_over_one_batch(tmp_path):
    scope = callback(probes="gradient_norms", every=1)
    trained(scope, tmp_path, gradient_accumulation_steps=4)
    assert (abs(scope.results["loss"] - np.log(11)) < 0.5).all()  # not a quarter of it


def test_own_loss_and_logger_are_used(tmp_path):
    class Kept(dict):
        def add_scalar(self, tag, value, step):
            self[tag, step] = value

    logger = Kept()
    twice = ns.whole_loss(lambda model, batch: 2 * model(**batch).loss)
    one = callback(probes="gradient_norms", every=2)
    other = callback(twice, logger=logger, probes="gradient_norms", every=2)
    trained(one, tmp_path)
    trained(other, tmp_path)
    assert np.allclose(other.results["loss"], 2 * one.results["loss"])
    assert [step for tag, step in logger if tag == "scope/loss"] == [0, 2, 4]


def test_training_that_breaks_off_can_be_closed(tmp_path):
    from transformers import TrainerCallback

    class Broken(TrainerCallback):
        def on_step_end(self, args, state, control, **things):
            if state.global_step == 3:
                raise ZeroDivisionError

    with Store(tmp_path / "runs.db") as store:
        scope = callback(probes="gradient_norms", every=1, store=store)
        scope_and_more = pytest.raises(ZeroDivisionError)
        with scope_and_more:
            _broken(scope, Broken(), tmp_path)
        scope.close()
        assert store.get(scope.scope.key).dataset.sizes["step"] == 3


def _broken(scope, broken, folder):
    from transformers import Trainer, TrainingArguments

    texts = torch.arange(64).reshape(-1, 8) % 11
    data = [{"input_ids": text, "labels": text} for text in texts]
    arguments = TrainingArguments(str(folder), max_steps=6, report_to="none", use_cpu=True)
    Trainer(language_model(), arguments, train_dataset=data, callbacks=[scope, broken]).train()


def test_trainings_that_hide_their_loss_are_refused(tmp_path):
    with pytest.raises(StateError, match="label_smoothing_factor: with label smoothing"):
        trained(callback(probes="economy"), tmp_path, label_smoothing_factor=0.1)


def test_missing_labels_are_told(tmp_path):
    from normscope.integrations.transformers import model_loss

    with pytest.raises(StateError, match=r"no loss for its inputs \(input_ids\); give them labels"):
        model_loss.function(language_model(), {"input_ids": torch.zeros(2, 8, dtype=torch.long)})


def test_wrong_options_are_refused_before_the_training():
    with pytest.raises(InputError, match="did you mean 'probes'"):
        callback(probez="economy")
    with pytest.raises(
        StateError, match=r"no scope before the training starts; call Trainer\.train"
    ):
        _ = callback().results


def test_example_measures_every_layer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLES / "scope_transformers.py"))
    results = names["scope"].results
    assert results["step"].values.tolist() == [0, 5, 10, 15]
    assert np.isfinite(results["gradient_norm"]).all()
    assert (tmp_path / "scope.svg").stat().st_size > 10_000
