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


def trainer_of(folder, **options):
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(3)
    texts = torch.arange(64).reshape(-1, 1).add(torch.arange(8)) % 11
    data = [{"input_ids": text, "labels": text, "unused": 1} for text in texts]
    quiet = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(
        str(folder), max_steps=20, per_device_train_batch_size=4, **quiet, **options
    )
    model = language_model().eval()  # as from_pretrained returns it
    return Trainer(model, arguments, train_dataset=data)


def trainers_state(trainer):
    state = {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()}
    flags = [module.training for module in trainer.model.modules()]
    gradients = [each.grad for each in trainer.model.parameters()]
    own = sorted((name, id(value)) for name, value in vars(trainer).items())
    accelerator = trainer.accelerator
    held = [len(each) for each in vars(accelerator).values() if isinstance(each, list)]
    random = torch.get_rng_state().tolist()
    return repr([state, flags, gradients, own, held, sorted(vars(accelerator)), random])


@pytest.mark.parametrize("after_training", [False, True])
def test_rate_is_found_for_a_trainer_that_stays_as_it_is(after_training, tmp_path):
    from normscope.integrations.transformers import find_learning_rate

    trainer = trainer_of(tmp_path, gradient_accumulation_steps=2, warmup_steps=5)
    if after_training:
        trainer.train()
    before = trainers_state(trainer)
    advice = find_learning_rate(trainer)
    assert trainers_state(trainer) == before
    assert advice.rule.name == "AdamW"
    assert advice.batch_size == 8
    assert advice.mode == "train"
    notes = " ".join(advice.notes)
    assert "before the schedule" in notes
    assert "the norm 1;" in notes
    assert "2 batches" in notes
    low, high = advice.verified
    assert 0 < low < high


def test_training_after_the_advice_ends_in_the_same_bits(tmp_path):
    from normscope.integrations.transformers import find_learning_rate

    asked, plain = trainer_of(tmp_path), None
    find_learning_rate(asked, effort="quick")
    asked.train()
    state = left(asked.model, asked)
    plain = trainer_of(tmp_path)
    plain.train()
    assert left(plain.model, plain) == state


def test_curvature_is_that_of_the_trainers_loss(tmp_path):
    from normscope.integrations.transformers import find_learning_rate, model_loss

    trainer = trainer_of(tmp_path, max_grad_norm=0.0, label_smoothing_factor=0.2)
    texts = torch.stack([each["input_ids"] for each in trainer.train_dataset])
    batches = [{"input_ids": part, "labels": part} for part in texts.split(4)]
    options = {"data": batches, "scheduler": None, "verify": False, "mode": "eval"}
    smoothed = find_learning_rate(trainer, **options)

    def loss(model, batch):
        logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        target = batch["labels"][:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.2)

    optimizer = trainer.create_optimizer()
    expected = ns.max_learning_rate(
        trainer.model, ns.whole_loss(loss), batches, optimizer=optimizer, verify=False, mode="eval"
    )
    assert smoothed.bound == pytest.approx(expected.bound, rel=1e-3)
    plain = find_learning_rate(trainer, loss=model_loss, **options)
    assert plain.bound != pytest.approx(expected.bound, rel=1e-3)


def test_trainers_that_do_not_fit_are_refused(tmp_path):
    from transformers import Trainer

    from normscope.integrations.transformers import find_learning_rate

    trainer = trainer_of(tmp_path)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    own = Trainer(trainer.model, trainer.args, optimizers=(optimizer, schedule))
    with pytest.raises(InputError, match="no train_dataset"):
        find_learning_rate(own)
    own.train_dataset = trainer.train_dataset
    with pytest.raises(StateError, match="scheduler of its own"):
        find_learning_rate(own)
    advice = find_learning_rate(own, scheduler=None, clip_norm=None, verify=False)
    assert advice.rule.name == "SGD"
