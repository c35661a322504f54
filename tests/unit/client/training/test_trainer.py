"""Training settings of a run: what each does to a client's weights, and that it survives a restart to the bit."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_federations import run_in_process
from torch import Tensor, nn

from feddbp_client.data import ClientData, Split, batches
from feddbp_client.methods.base import LocalMethod, Objective, Task
from feddbp_client.methods.local import Local
from feddbp_client.training import trainer as trainer_module
from feddbp_client.training.errors import DivergedError
from feddbp_client.training.setup import LocalOptions, build_client, build_method
from feddbp_client.training.trainer import LocalTrainer, _LossTally
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import Payload

CLASSES, SHAPE = 4, (1, 4, 4)


def samples(count: int, *, seed: int = 0) -> Split:
    random = np.random.default_rng(seed)
    labels = torch.from_numpy(random.integers(CLASSES, size=count))
    images = random.integers(256, size=(count, 4, 4, 1), dtype=np.uint8)
    images[:, 0, 0, 0] = 60 * labels.numpy()  # the class can be learnt
    return Split(images, labels)


def network(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU())


class Recording(Local):
    """Local training that records the size of its batches and the loss of its steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batches: list[int] = []

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        self.batches.append(len(images))
        return super().objective(images, labels)


def method(backbone: nn.Module | None = None, **task: Any) -> Recording:
    return Recording(
        backbone=backbone or network(),
        make_head=lambda: nn.Linear(8, CLASSES),
        settings=LocalSettings(),
        task=Task(classes=CLASSES, feature_dim=8, rounds=4, **task),
    )


def trainer(
    local: LocalMethod[Any],
    *,
    train: int = 40,
    rounds: int = 4,
    validation: int = 0,
    newcomers: int = 0,
    newcomer_rounds: int = 0,
    client_id: int = 0,
    make_optimizer: Any = None,
    **training: Any,
) -> LocalTrainer:
    settings = {"local_epochs": 1, "batch_size": 8, "learning_rate": 0.1, "feature_dim": 8, **training}
    return LocalTrainer(
        method=local,
        data=ClientData(
            train=samples(train),
            test=samples(20, seed=1),
            classes=CLASSES,
            class_names=tuple("abcd"),
            validation=samples(validation, seed=2) if validation else None,
        ),
        config=RunConfig(
            method="local",
            rounds=rounds,
            data=DataConfig(dataset="custom", classes=CLASSES),
            newcomers=newcomers,
            newcomer_rounds=newcomer_rounds,
            training=TrainingConfig.model_validate(settings),
        ),
        client_id=client_id,
        make_optimizer=make_optimizer,
    )


def weights_after(*rounds: int, **options: Any) -> dict[str, Tensor]:
    local = method()
    run = trainer(local, **options)
    for number in rounds:
        run.train(Payload(), number, lambda *_: None)
    return {name: tensor.clone() for name, tensor in local.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def moved(number: int = 0, **options: Any) -> float:
    """How far one round moves the weights."""
    before, after = method().state_dict(), weights_after(number, **options)
    return math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))


# --- the optimiser


def test_momentum_is_reset_every_round_unless_the_optimiser_is_kept() -> None:
    def second_step(*, keep: bool) -> Tensor:
        local = method()
        run = trainer(local, train=8, momentum=0.9, keep_optimizer=keep)
        run.train(Payload(), 0, lambda *_: None)
        before = local.get_parameter("head.weight").detach().clone()
        run.train(Payload(), 1, lambda *_: None)
        return local.get_parameter("head.weight").detach() - before

    assert second_step(keep=True).norm() > 1.3 * second_step(keep=False).norm()


def test_adamw_moves_weights_by_the_learning_rate_whatever_the_scale_of_the_gradient() -> None:
    local = method()
    before = local.get_parameter("head.bias").detach().clone()
    trainer(local, train=8, optimizer="adamw", learning_rate=0.01).train(Payload(), 0, lambda *_: None)
    torch.testing.assert_close(
        (local.get_parameter("head.bias").detach() - before).abs(),
        torch.full((CLASSES,), 0.01),
        rtol=1e-3,
        atol=0,
    )


def test_momentum_is_refused_for_adamw_and_an_unknown_optimiser_is_named() -> None:
    with pytest.raises(ConfigurationError, match="momentum is a setting of sgd"):
        TrainingConfig(optimizer="adamw", momentum=0.9)
    with pytest.raises(ConfigurationError, match="no optimiser is called 'lion'; there are: sgd, adamw"):
        TrainingConfig(optimizer="lion")


def test_an_optimiser_of_ones_own_is_made_only_if_the_clients_operator_allows_its_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("own_optimizers")
    module.__dict__["lazy"] = lambda groups, momentum, weight_decay: torch.optim.SGD(
        [{**group, "lr": 0.0} for group in groups]
    )
    monkeypatch.setitem(sys.modules, "own_optimizers", module)
    config = RunConfig(training=TrainingConfig(optimizer="own_optimizers:lazy", local_epochs=1))
    options = LocalOptions(data=None, data_dir=Path(), model=None)
    with pytest.raises(ConfigurationError, match=r"the run's optimizer .* --allow-import own_optimizers$"):
        build_client(config, "run", 0, options)
    client = build_client(config, "run", 0, replace(options, allow_import=("own_optimizers",)))
    before = [parameter.detach().clone() for parameter in client.trainer.method.parameters()]
    client.trainer.train(Payload(), 0, lambda *_: None)
    assert all(map(torch.equal, before, client.trainer.method.parameters()))


class Counting(torch.optim.SGD):
    """Keeps numbers and tensors of several types, in its state and in its groups."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            group["seen"] = group.get("seen", 0) + 1
            group["share"] = torch.tensor([group["seen"] / 3], dtype=torch.float64)
            for parameter in group["params"]:
                state = self.state[parameter]
                state["calls"] = state.get("calls", 2**24) + 1
                state["decay"] = state.get("decay", 1.0) * 0.9
                state["warm"] = True
                state["bits"] = torch.tensor([2**24 + 1])


def counting(groups: list[dict[str, Any]], *, momentum: float, weight_decay: float) -> Counting:
    return Counting(groups, momentum=momentum, weight_decay=weight_decay)


def test_the_state_of_an_optimiser_of_ones_own_is_restored_in_value_and_type() -> None:
    options: dict[str, Any] = {"optimizer": "mine:counting", "keep_optimizer": True, "momentum": 0.9}
    first = trainer(method(), make_optimizer=counting, **options)
    first.train(Payload(), 0, lambda *_: None)
    again = trainer(method(), make_optimizer=counting, **options)
    again.load_state(first.state())
    for run in (first, again):
        run.train(Payload(), 1, lambda *_: None)
    expected, found = first.state().optimizer, again.state().optimizer
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        name: tensor.dtype for name, tensor in expected.items()
    }
    assert same(dict(expected), dict(found))
    assert expected["parameter.0.number.calls"].item() == 2**24 + 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda groups: None, "unexpected keyword argument 'momentum'"),
        (lambda groups, **_: "sgd", "returned str, not a torch.optim.Optimizer"),
        (
            lambda groups, **_: torch.optim.SGD([{"params": [weight]} for weight in groups[0]["params"]], lr=0.1),
            "has 4 parameter groups, but was given 1",
        ),
    ],
)
def test_an_optimiser_of_ones_own_that_does_not_work_fails_before_the_first_round(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the run's optimizer mine:made: .*{message}"):
        trainer(method(), make_optimizer=make, optimizer="mine:made")


def test_gradients_are_released_after_a_round() -> None:
    local = method()
    trainer(local, keep_optimizer=True, momentum=0.9).train(Payload(), 0, lambda *_: None)
    assert all(parameter.grad is None for parameter in local.parameters())


def test_a_gradient_is_clipped_to_the_norm() -> None:
    assert moved(train=8, learning_rate=1.0, clip_norm=0.01) == pytest.approx(0.01, rel=1e-4)
    assert moved(train=8, learning_rate=1.0, clip_norm=1e6) == moved(train=8, learning_rate=1.0)


# --- the schedule


def test_the_cosine_schedule_falls_to_almost_nothing_over_the_run() -> None:
    first, last = (moved(number, schedule="cosine", rounds=20) for number in (0, 19))
    assert last < first / 50
    assert moved(0, rounds=20) > first  # it falls within a round, too


def test_the_schedule_of_a_newcomer_extends_over_its_own_rounds() -> None:
    # of 20 clients the last is a newcomer, in the last 4 of 12 rounds
    run: dict[str, Any] = {"schedule": "cosine", "rounds": 12, "newcomers": 1, "newcomer_rounds": 4}
    alone = [moved(number, schedule="cosine", rounds=4) for number in range(4)]
    joined = [moved(8 + number, client_id=19, **run) for number in range(4)]
    others = [moved(number, client_id=0, **run) for number in (0, 7)]
    assert joined[0] > 0.5 * alone[0] > joined[3] > 0
    assert others[0] > 0.5 * alone[0]
    assert others[1] < 0.1 * others[0]


def test_the_step_schedule_multiplies_the_learning_rate_every_so_many_rounds() -> None:
    options = {"schedule": "step", "schedule_rounds": 2, "schedule_factor": 0.5}
    for number, factor in enumerate((1.0, 1.0, 0.5, 0.5)):
        expected = moved(number, learning_rate=0.1 * factor)
        assert moved(number, **options) == expected


# --- averaged weights


def test_the_average_is_evaluated_and_the_weights_go_on_training() -> None:
    plain, averaged = method(), method()
    runs = trainer(plain, learning_rate=0.5), trainer(averaged, learning_rate=0.5, ema=0.9)
    for run in runs:
        run.train(Payload(), 0, lambda *_: None)
    assert same(plain.state_dict(), averaged.state_dict())
    average = {name: tensor for name, tensor in runs[1].state().average.items() if name != "steps"}
    assert average.keys() == dict(averaged.named_parameters()).keys()
    assert not same(average, averaged.state_dict())
    evaluated = method()
    evaluated.load_state_dict(average)
    expected = trainer(evaluated).evaluate(Payload(), 1).metrics.accuracies
    assert list(runs[1].evaluate(Payload(), 1).metrics.accuracies) == list(expected)
    assert same(plain.state_dict(), averaged.state_dict())


def test_weights_that_the_server_sends_replace_their_average() -> None:
    class Receiving(Recording):
        def receive(self, payload: Payload, *, completed_rounds: int) -> None:
            with torch.no_grad():
                self.get_parameter("head.bias").fill_(3.0)

    local = Receiving(
        backbone=network(),
        make_head=lambda: nn.Linear(8, CLASSES),
        settings=LocalSettings(),
        task=Task(classes=CLASSES, feature_dim=8, rounds=4),
    )
    run = trainer(local, ema=0.9)
    run.evaluate(Payload(), 0)
    assert run.state().average["head.bias"].tolist() == [3.0] * CLASSES


# --- labels, first weights, batches


def test_smoothed_labels_keep_the_loss_of_a_fitted_sample_away_from_zero() -> None:
    logits, labels = torch.tensor([[20.0, 0.0, 0.0, 0.0]]), torch.tensor([0])
    assert method().cross_entropy(logits, labels) < 1e-6
    assert method(label_smoothing=0.1).cross_entropy(logits, labels) == pytest.approx(20 * 0.1 * 3 / 4, rel=1e-4)


@pytest.mark.parametrize("init", ["own", "common"])
def test_branches_and_heads_begin_alike_on_all_clients_if_the_run_says_so(init: str) -> None:
    config = RunConfig(data=DataConfig(dataset="digits"), training=TrainingConfig.model_validate({"init": init}))
    one, other = (
        build_method(config, client, architecture, "linear", (1, 16, 16))
        for client, architecture in ((0, "mini_plain"), (1, "mini_mixer"))
    )
    for part in ("branches", "heads"):
        weights = (getattr(local, part).state_dict() for local in (one, other))
        assert same(*weights) == (init == "common")
    third = build_method(config, 8, "mini_plain", "linear", (1, 16, 16))
    assert not same(one.backbone.state_dict(), third.backbone.state_dict())


@pytest.mark.parametrize(
    ("remainder", "norm", "expected"),
    [
        ("auto", False, [8, 8, 2]),
        ("auto", True, [8, 10]),
        ("keep", True, [8, 8, 2]),
        ("merge", False, [8, 10]),
        ("drop", False, [8, 8]),
    ],
)
def test_a_small_last_batch_is_treated_as_the_run_says(remainder: str, norm: bool, expected: list[int]) -> None:
    local = method(network(norm=norm))
    trainer(local, train=18, batch_remainder=remainder).train(Payload(), 0, lambda *_: None)
    assert local.batches == expected


def test_a_last_batch_of_half_the_size_is_not_merged_and_a_lone_batch_is_kept() -> None:
    local = method(network(norm=True))
    trainer(local, train=12).train(Payload(), 0, lambda *_: None)
    assert local.batches == [8, 4]
    for remainder in ("merge", "drop"):
        local = method()
        trainer(local, train=3, batch_remainder=remainder).train(Payload(), 0, lambda *_: None)
        assert local.batches == [3]


def test_batch_norm_loses_nothing_on_a_split_with_a_remainder_of_two() -> None:
    """A batch of two ruins the statistics that evaluation uses; merged, the split trains like one without it."""

    def accuracy(remainder: str, train: int) -> int:
        run = trainer(
            method(network(norm=True)), train=train, local_epochs=5, learning_rate=0.5, batch_remainder=remainder
        )
        for number in range(3):
            run.train(Payload(), number, lambda *_: None)
        return run.evaluate(Payload(), 3).metrics.accuracies[0].correct

    even = accuracy("auto", 64)
    assert accuracy("auto", 66) >= even - 1
    assert accuracy("keep", 66) < even - 1


# --- validation


def test_validation_samples_are_evaluated_beside_the_test_samples() -> None:
    run = trainer(method(), validation=10)
    for number in range(3):
        metrics = run.train(Payload(), number, lambda *_: None).metrics
    assert (metrics.test_samples, metrics.validation_samples) == (20, 10)
    (accuracy,) = metrics.accuracies
    assert 0 < accuracy.validation_correct <= 10


# --- rare classes


@pytest.mark.parametrize("predicted", [1, 2])
def test_samples_of_rare_classes_are_counted_apart(predicted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    local = method()
    monkeypatch.setattr(local, "predict", lambda images: {"head": torch.full((len(images),), predicted)})
    counts, test = (split.labels.bincount(minlength=CLASSES).tolist() for split in (samples(40), samples(20, seed=1)))
    assert counts == [10, 7, 13, 10]  # class 1 is rare
    metrics = trainer(local).evaluate(Payload(), 0).metrics
    assert metrics.accuracies[0].correct == test[predicted] > 0
    assert (metrics.rare_test_samples, metrics.rare_correct) == (test[1], test[1] if predicted == 1 else 0)


def test_a_client_without_rare_classes_reports_none() -> None:
    metrics = trainer(method(), train=400).evaluate(Payload(), 0).metrics
    assert (metrics.rare_test_samples, metrics.rare_correct) == (0, 0)


# --- restarts


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("feddbp", {"momentum": 0.9, "keep_optimizer": True, "schedule": "cosine"}),
        ("feddbp", {"optimizer": "adamw", "keep_optimizer": True, "learning_rate": 0.002, "clip_norm": 1.0}),
        ("feddbp", {"ema": 0.95, "label_smoothing": 0.1, "schedule": "step", "schedule_rounds": 1}),
        ("lg-fedavg", {"ema": 0.9, "momentum": 0.5, "keep_optimizer": True, "init": "common"}),
        ("fedkd", {"momentum": 0.9, "keep_optimizer": True, "ema": 0.9, "validation": 0.2}),
        ("feddbp", {"batch_remainder": "merge", "validation": 0.1, "init": "common"}),
        ("fedproto", {"augment": "randaugment", "batch_remainder": "drop"}),
    ],
)
def test_clients_that_restart_before_every_round_end_with_the_same_bits(
    name: str, training: dict[str, Any], tmp_path: Path
) -> None:
    expected = run_in_process(name, training=training)
    assert run_in_process(name, training=training, restart_in=tmp_path) == expected
    assert run_in_process(name) != expected  # the settings have an effect


@pytest.mark.parametrize("training", [{}, {"keep_optimizer": True, "momentum": 0.9}, {"ema": 0.5}], ids=str)
def test_a_round_that_diverges_leaves_no_trace(training: dict[str, Any]) -> None:
    """The client goes on as one that was never selected for the round, which is also how it resumes."""
    digests = []
    for diverges in (True, False):
        client = trainer(method(), **training)
        client.train(Payload(), 0, ignore_progress)
        if diverges:
            parameters = list(client.method.parameters())
            before = client.state().copied()
            poison = parameters[0].register_hook(lambda gradient: gradient * math.nan)
            result = client.train(Payload(), 1, ignore_progress)
            poison.remove()
            assert result.upload is None
            assert result.skipped.startswith("training diverged: ")
            assert result.metrics.test_samples
            assert not result.metrics.losses
            after = client.state()
            for part in ("model", "optimizer", "average"):
                old, new = getattr(before, part), getattr(after, part)
                assert old.keys() == new.keys()
                assert all(torch.equal(old[name], new[name].cpu()) for name in old)
        client.train(Payload(), 2, ignore_progress)
        digests.append([tensor.clone() for tensor in client.state().model.values()])
    assert all(torch.equal(one, other) for one, other in zip(*digests, strict=True))


def test_a_round_that_diverges_is_tried_once_more_in_short_steps(caplog: pytest.LogCaptureFixture) -> None:
    weights = []
    for _ in range(2):
        client = trainer(method(), keep_optimizer=True, momentum=0.9)
        steep = next(client.method.parameters()).register_hook(lambda gradient: gradient * 1e8)
        result = client.train(Payload(), 0, ignore_progress)
        steep.remove()
        assert not result.skipped
        assert all(loss.value < 100 for loss in result.metrics.losses)
        weights.append(dict(client.state().copied().model))
    assert same(*weights)
    assert "training diverged: loss term 'total' is" in caplog.text
    assert "; trying once more in shorter steps" in caplog.text


def test_a_last_step_that_ruins_the_weights_counts_as_diverged() -> None:
    """No loss shows it in this round, and in the next one there would be no way back."""
    client = trainer(method(), train=8)
    weights = next(client.method.parameters())
    steep = weights.register_hook(lambda gradient: gradient * 1e30)
    result = client.train(Payload(), 0, ignore_progress)
    steep.remove()
    assert not result.skipped
    assert weights.abs().max() < 100
    before = client.state().copied()
    weights.register_hook(lambda gradient: gradient * math.nan)
    result = client.train(Payload(), 1, ignore_progress)
    assert result.skipped.startswith("training diverged: a weight of backbone.1.weight is nan")
    assert same(dict(before.model), dict(client.state().model))


def test_short_steps_end_with_their_round() -> None:
    usual, other = trainer(method()), trainer(method())
    for client in (usual, other):
        next(client.method.parameters()).register_hook(lambda gradient: gradient * 100)
    before = other.state().copied()
    with other._optimization.in_short_steps():
        other.train(Payload(), 0, ignore_progress)
    short = dict(other.state().copied().model)
    other.load_state(before)
    for client in (usual, other):
        client.train(Payload(), 0, ignore_progress)
    assert same(dict(usual.state().model), dict(other.state().model))
    assert not same(short, dict(other.state().model))


def test_samples_are_shuffled_an_epoch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may ask for billions of epochs: their orders would not fit into memory."""
    shuffled = 0

    def counting(*arguments: Any, **options: Any) -> list[Tensor]:
        nonlocal shuffled
        shuffled += 1
        return batches(*arguments, **options)

    monkeypatch.setattr(trainer_module, "batches", counting)
    at_epoch_end: list[tuple[int, int]] = []
    trainer(method(), local_epochs=3).train(Payload(), 0, lambda done, _: at_epoch_end.append((done, shuffled)))
    assert at_epoch_end == [(1, 1), (2, 2), (3, 3)]


def test_a_loss_that_is_finite_but_huge_counts_as_diverged() -> None:
    tally = _LossTally()
    tally.add({"total": torch.tensor(2e6)})
    with pytest.raises(
        DivergedError, match=r"loss term 'total' is 2e\+06; try a smaller --learning-rate or --clip-norm 10"
    ):
        tally.means()


def ignore_progress(done: int, epochs: int) -> None:
    pass
