from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.catalog import DATASETS, MODEL_GROUPS
from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import FisherForm, RealType, WireConfig
from feddbp_common.config.identity import canonical
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS, method_named
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.fedgen import LABEL_COUNTS
from feddbp_common.methods.fedlfp import GLOBAL_PROTOTYPES
from feddbp_common.methods.fpl import CLUSTER_CLASSES, CLUSTER_PROTOTYPES
from feddbp_common.methods.frozen import NOISE
from feddbp_common.wire import PayloadRules, PrototypeRule, WireType

positive = st.floats(1e-300, 1e300)


@st.composite
def data_configs(draw: st.DrawFn) -> DataConfig:
    dataset = draw(st.sampled_from([*DATASETS, "custom"]))
    classes = DATASETS[dataset].classes if dataset in DATASETS else draw(st.integers(2, 30))
    named = classes <= 30 and draw(st.booleans())
    names = draw(st.lists(st.text(min_size=1), min_size=classes, max_size=classes, unique=True)) if named else []
    return DataConfig(dataset=dataset, alpha=draw(positive), classes=classes, class_names=tuple(names))


feddbp_settings = st.builds(
    FedDBPSettings,
    lambda_1=st.floats(0, 1e300),
    lambda_2=positive,  # with both at zero a guide leaves no prototypes to predict by
    lambda_3=st.floats(0, 1e300),
    tau=positive,
    k_top=st.integers(0, 2),
    eta=st.floats(0, 1),
    l_s_reduction=st.sampled_from(["mean", "sum"]),
    l_d_form=st.sampled_from(["log", "ratio"]),
    hard_negatives=st.sampled_from(["reweight", "printed", "boundary", "none"]),
    branch=st.sampled_from(["linear", "relu", "mlp"]),
    heads=st.sampled_from(["shared", "separate"]),
    inference=st.sampled_from(["prototype_normalized", "prototype", "head"]),
    without_share=st.booleans(),
    without_personalisation=st.booleans(),
    anchors=st.sampled_from(["global", "random", "shuffled"]),
    guided=st.booleans(),
    guide_prior=st.sampled_from(["client", "none"]),
    guide_weight=positive,
    distillation=st.floats(0, 1e300),
    temperature=positive,
    prototype_gradient=st.sampled_from(["all", "branches"]),
    warmup_rounds=st.integers(0, 10**6),
)
training_configs = st.builds(
    TrainingConfig,
    local_epochs=st.integers(1, 10**6),
    batch_size=st.integers(2, 10**6),
    learning_rate=positive,
    momentum=st.floats(0, 1, exclude_max=True),
    weight_decay=st.floats(0, 1e300),
    model_group=st.sampled_from(list(MODEL_GROUPS)),
    feature_dim=st.integers(2, 65_535),
    optimizer=st.sampled_from(["sgd", "package.module:function"]),
    keep_optimizer=st.booleans(),
    schedule=st.sampled_from(["constant", "cosine", "step"]),
    schedule_rounds=st.integers(1, 10**6),
    schedule_factor=st.floats(1e-6, 1),
    clip_norm=st.floats(0, 1e300),
    label_smoothing=st.floats(0, 1, exclude_max=True),
    ema=st.floats(0, 1, exclude_max=True),
    init=st.sampled_from(["own", "common"]),
    batch_remainder=st.sampled_from(["auto", "keep", "merge", "drop"]),
    validation=st.floats(0, 0.5),
    augment=st.sampled_from(["none", "flip", "flip-crop", "randaugment"]),
    transform=st.sampled_from(["", "own.images:cutout"]),
)


@st.composite
def run_configs(draw: st.DrawFn) -> RunConfig:
    method = draw(st.sampled_from(["feddbp", "local"]))
    return RunConfig(
        method=method,
        method_settings=draw(feddbp_settings).model_dump() if method == "feddbp" else {},
        clients=draw(st.integers(1, 100_000)),
        rounds=draw(st.integers(1, 10**6)),
        seed=draw(st.integers(0, 2**32 - 1)),
        data=draw(data_configs()),
        training=draw(training_configs),
        wire=WireConfig(
            wire_dtype=draw(st.sampled_from(list(RealType))), fisher=draw(st.sampled_from(list(FisherForm)))
        ),
    )


@settings(max_examples=60, deadline=None)
@given(run_configs())
def test_a_run_is_the_same_after_transfer_to_a_client(run: RunConfig) -> None:
    received = run_from_proto(pb.RunConfig.FromString(run_to_proto(run).SerializeToString()))
    assert received == run
    assert received.canonical_json() == run.canonical_json()
    assert received.fingerprint == run.fingerprint


def test_the_strategies_above_cover_every_setting() -> None:
    """A new field must be added to the round trip as well."""
    assert set(FedDBPSettings.model_fields) == {
        "lambda_1",
        "lambda_2",
        "lambda_3",
        "tau",
        "k_top",
        "eta",
        "l_s_reduction",
        "l_d_form",
        "hard_negatives",
        "branch",
        "heads",
        "inference",
        "without_share",
        "without_decision",
        "without_personalisation",
        "anchors",
        "guided",
        "guide_prior",
        "guide_weight",
        "distillation",
        "temperature",
        "prototype_gradient",
        "warmup_rounds",
    }


def _every_other_value() -> list[tuple[str, dict[str, Any]]]:
    """Returns, for each option, values that differ from the default run only in it."""
    return [
        ("method", {"method": "local"}),
        ("setting", {"method_settings": {"k_top": 29}}),
        ("clients", {"clients": 19}),
        ("rounds", {"rounds": 99}),
        ("seed", {"seed": 1}),
        ("dataset", {"data": DataConfig(dataset="cifar10")}),
        ("alpha", {"data": DataConfig(alpha=0.2)}),
        ("names", {"data": DataConfig(class_names=tuple("abcdefghij"))}),
        ("epochs", {"training": TrainingConfig(local_epochs=9)}),
        ("batch", {"training": TrainingConfig(batch_size=31)}),
        ("rate", {"training": TrainingConfig(learning_rate=0.02)}),
        ("momentum", {"training": TrainingConfig(momentum=0.5)}),
        ("decay", {"training": TrainingConfig(weight_decay=0.5)}),
        ("group", {"training": TrainingConfig(model_group="htfe-2")}),
        ("width", {"training": TrainingConfig(feature_dim=64)}),
        ("loader", {"training": TrainingConfig(htfllib_loader=True)}),
        ("augment", {"training": TrainingConfig(augment="flip")}),
        ("transform", {"training": TrainingConfig(transform="own.images:cutout")}),
        ("dtype", {"wire": WireConfig(wire_dtype=RealType.BFLOAT16)}),
        ("fisher", {"wire": WireConfig(fisher=FisherForm.TOP_CHANNELS)}),
    ]


def test_every_option_of_a_run_is_part_of_its_fingerprint() -> None:
    fingerprints = {name: RunConfig(**changed).fingerprint for name, changed in _every_other_value()}
    fingerprints["default"] = RunConfig().fingerprint
    assert len(set(fingerprints.values())) == len(fingerprints)


def test_explicit_defaults_give_the_same_fingerprint() -> None:
    explicit = RunConfig(
        method_settings=FedDBPSettings().model_dump(), data=DataConfig(dataset="digits", classes=10), rounds=100
    )
    assert explicit.fingerprint == RunConfig().fingerprint
    assert RunConfig(method_settings={"k_top": "7"}).fingerprint == RunConfig(method_settings={"k_top": 7}).fingerprint


def test_a_run_stores_all_settings_including_defaults() -> None:
    run = RunConfig(method_settings={"eta": 0.5})
    assert run.method_settings == {**canonical(FedDBPSettings()), "eta": 0.5}
    assert json.loads(run.canonical_json())["method_settings"]["k_top"] == 30
    assert run.settings == FedDBPSettings(eta=0.5)


def test_the_papers_hyper_parameters_are_the_defaults() -> None:
    run = RunConfig()
    assert (run.method, run.clients, run.rounds) == ("feddbp", 20, 100)
    assert (run.training.local_epochs, run.training.batch_size, run.training.learning_rate) == (10, 32, 0.01)
    assert run.training.feature_dim == 512
    settings = run.settings
    assert isinstance(settings, FedDBPSettings)
    assert (settings.lambda_1, settings.lambda_2, settings.lambda_3) == (1, 10, 1)
    assert (settings.tau, settings.k_top, settings.eta) == (0.07, 30, 1.0)


def test_the_rules_of_payloads_follow_from_the_run() -> None:
    run = RunConfig(
        data=DataConfig(dataset="custom", classes=3),
        training=TrainingConfig(feature_dim=8),
        method_settings={"k_top": 5},
        wire=WireConfig(wire_dtype=RealType.FLOAT16, fisher=FisherForm.TOP_CHANNELS),
    )
    assert run.wire_type is WireType.FLOAT16
    assert run.method_spec.upload_rules(run.settings, run.exchange_shape) == PayloadRules(
        prototypes=PrototypeRule(classes=3, width=8, counts=True), top_channels=5
    )
    assert run.method_spec.download_rules(run.settings, run.exchange_shape) == PayloadRules(
        prototypes=PrototypeRule(classes=3, width=8), prototypes_required=False
    )
    in_full = run.model_copy(update={"wire": WireConfig()})
    assert in_full.method_spec.upload_rules(in_full.settings, in_full.exchange_shape).fisher_scores


def test_the_modules_that_clients_have_to_allow_follow_from_the_run() -> None:
    assert RunConfig().imports == ()
    training = {"transform": "own.images:cutout", "optimizer": "lion.torch:lion"}
    assert RunConfig.model_validate({"training": training}).imports == ("lion.torch", "own.images")


def test_local_training_exchanges_nothing() -> None:
    run = RunConfig(method="local")
    assert run.method_spec.upload_rules(run.settings, run.exchange_shape) == PayloadRules()
    assert run.method_spec.download_rules(run.settings, run.exchange_shape) == PayloadRules()


# --- invalid configurations ---


def test_public_images_have_their_published_size_unless_the_run_scales_them() -> None:
    published = RunConfig(data=DataConfig(dataset="flowers102"))
    scaled = RunConfig(data=DataConfig(dataset="flowers102", image_size=32))
    assert (published.data.image_size, scaled.data.image_size) == (64, 32)
    assert scaled.fingerprint != published.fingerprint
    assert RunConfig(data=DataConfig(dataset="flowers102", image_size=64)).fingerprint == published.fingerprint
    assert run_from_proto(run_to_proto(scaled)) == scaled


JOINED: dict[str, Any] = {"clients": 5, "rounds": 10, "finetune_rounds": 2, "newcomers": 2, "newcomer_rounds": 4}


def test_newcomers_are_the_clients_with_the_highest_ids_and_have_the_last_rounds() -> None:
    run = RunConfig.model_validate(JOINED)
    assert [run.is_newcomer(client) for client in range(5)] == [False] * 3 + [True] * 2
    assert [run.rounds_of(client) for client in (2, 3)] == [range(6), range(6, 10)]
    assert [run.exchanges_in(number) for number in (5, 6, 9)] == [True, False, False]
    assert [run.clients_in(number) for number in (0, 5, 6, 9, 10)] == [3, 3, 2, 2, 5]
    assert RunConfig(clients=5, rounds=10).rounds_of(4) == range(10)
    assert RunConfig(clients=5, rounds=10).clients_in(9) == 5


@pytest.mark.parametrize(
    ("changed", "client", "expected"),
    [
        ({}, 0, ["all"] * 10),
        ({}, 4, ["all"] * 6 + ["finished"] * 2 + ["own"] * 2),
        ({"exchange": "off"}, 4, ["own"] * 10),
        ({"newcomers": 0, "newcomer_rounds": 0}, 4, ["all"] * 8 + ["own"] * 2),
        ({"newcomers": 0, "newcomer_rounds": 0, "finetune_state": "last"}, 4, ["all"] * 10),
        ({"newcomers": 0, "newcomer_rounds": 0, "finetune_rounds": 0}, 4, ["all"] * 10),
    ],
)
def test_whose_uploads_a_client_receives_depends_on_when_it_joined(
    changed: dict[str, Any], client: int, expected: list[str]
) -> None:
    run = RunConfig.model_validate({**JOINED, **changed})
    assert [run.sources_of(client, number) for number in range(10)] == expected


@pytest.mark.parametrize(
    ("given_name", "answer"),
    [
        ("feddpb", "did you mean 'feddbp'?"),
        ("FedDBP", "did you mean 'feddbp'?"),
        ("fed_dbp", "did you mean 'feddbp'?"),
        ("locale", "did you mean 'local'?"),
        ("xyz", f"there are: {', '.join(METHODS)}"),
    ],
)
def test_an_unknown_method_is_answered_with_a_similar_one_or_all(given_name: str, answer: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RunConfig(method=given_name)
    assert str(caught.value) == f"no method is called {given_name!r}; {answer}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": {"dataset": "mnist"}}, "no data set is called 'mnist'; there are: digits, "),
        ({"data": {"dataset": "custom"}}, "a custom data set needs --classes or --class-names"),
        ({"data": {"dataset": "cifar10", "classes": 100}}, "cifar10 has 10 classes, not 100"),
        ({"data": {"dataset": "custom", "classes": 3, "class_names": "a,b"}}, "2 class names for 3 classes"),
        ({"data": {"dataset": "custom", "class_names": "a,b,a"}}, "a class name is given twice"),
        ({"data": {"dataset": "custom", "class_names": "a,,b"}}, "'a,,b' has an empty class name"),
        ({"data": {"dataset": "custom", "class_names": "a,b, "}}, "'a,b, ' has an empty class name"),
        (
            {"finetune_rounds": 5, "rounds": 5},
            "finetune_rounds is 5, but the run has 5 rounds; it must be less",
        ),
        ({"newcomers": 2}, "newcomers need both a number of them and rounds of their own"),
        ({"newcomer_samples": 60}, "newcomer_samples is given, but the run has no newcomers"),
        ({"newcomers": 20, "newcomer_rounds": 1}, "20 of 20 clients are newcomers; some must not be"),
        (
            {"newcomers": 1, "newcomer_rounds": 100},
            "newcomer_rounds is 100, but the run has 100 rounds; it must be less",
        ),
        (
            {"newcomers": 1, "newcomer_rounds": 8, "finetune_rounds": 8},
            "newcomer_rounds is 8 and finetune_rounds 8: no round is left in which newcomers receive anything",
        ),
        ({"finetune_state": "last"}, "finetune_state is last, but the run has no finetune_rounds"),
        (
            {"finetune_state": "last", "finetune_rounds": 2, "exchange": "off"},
            "finetune_state = last needs a state that all clients share; leave out exchange = off",
        ),
        (
            {**JOINED, "finetune_state": "last"},
            "finetune_state = last needs a state that all clients share; leave out newcomers",
        ),
        (
            {"method": "fedavg", "finetune_state": "last", "finetune_rounds": 2},
            "with finetune_state = last clients of fedavg would begin each round of fine-tuning with the weights of "
            "the last exchange, and lose what they have tuned; leave finetune_state at own",
        ),
        (
            {"method_settings": {"guided": True}, "finetune_state": "last", "finetune_rounds": 2},
            "with finetune_state = last clients of feddbp with guided = true would begin each round of fine-tuning",
        ),
        (
            {
                "method": "fd",
                "method_settings": {"leave_one_out": True},
                "finetune_state": "last",
                "finetune_rounds": 2,
            },
            "with finetune_state = last the server of fd with leave_one_out = true could not take a client's own "
            "share out of the last state once it has uploaded again; leave finetune_state at own",
        ),
        (
            {"method": "fedkd", "data": {"dataset": "custom", "classes": 3, "image_size": 8}},
            "the network this method shares needs images with a side of at least 16, not 8",
        ),
        ({"training": {"model_group": "htfe-88"}}, "no model group is called 'htfe-88'; there are: mini-8, "),
        (
            {"training": {"transform": "own_changes"}},
            "--transform own_changes: is not of the form package.module:function",
        ),
        (
            {"training": {"optimizer": "own:"}},
            "--optimizer own:: is not of the form package.module:function",
        ),
        ({"method_settings": {"tua": 3}}, "feddbp has no setting 'tua'; did you mean 'tau'? (it has: lambda_1, "),
        ({"method_settings": {"ktop": 3}}, "feddbp has no setting 'ktop'; did you mean 'k_top'? (it has: lambda_1, "),
        ({"method": "local", "method_settings": {"k_top": 3}}, "local has no setting 'k_top' (it has: none)"),
        ({"method_settings": {"eta": 2}}, "setting 'eta' of feddbp: input should be less than or equal to 1"),
        ({"method_settings": {"branch": "deep"}}, "setting 'branch' of feddbp: input should be 'linear', "),
        ({"method_settings": {"k_top": 513}}, "k_top is 513, but a prototype has 512 channels"),
        ({"method_settings": {"without_share": 1, "without_decision": 1}}, "without_share and without_decision leave"),
    ],
)
def test_an_invalid_combination_is_reported_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RunConfig.model_validate(options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"clients": 0},
        {"clients": 100_001},
        {"rounds": 0},
        {"seed": -1},
        {"seed": 2**32},
        {"data": {"alpha": 0}},
        {"data": {"alpha": float("nan")}},
        {"data": {"dataset": "custom", "classes": 1}},
        {"training": {"local_epochs": 0}},
        {"training": {"batch_size": 1}},
        {"training": {"momentum": 1}},
        {"training": {"learning_rate": -0.1}},
        {"training": {"feature_dim": 65_536}},
        {"training": {"augment": "mixup"}},
        {"training": {"transform": f"{'x' * 200}:f"}},
        {"wire": {"wire_dtype": "float64"}},
        {"wire": {"fisher": "none"}},
        {"run_time": 3},
        {"data": {"beta": 3}},
    ],
)
def test_a_value_out_of_bounds_or_unknown_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunConfig.model_validate(options)


@pytest.mark.parametrize("option", ["rounds", "training.local_epochs", "training.batch_size"])
def test_a_number_beyond_the_range_of_the_protocol_is_refused(option: str) -> None:
    *table, name = option.split(".")
    options: dict[str, Any] = {table[0]: {name: 2**32}} if table else {name: 2**32}
    with pytest.raises(ValidationError):
        RunConfig.model_validate(options)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("setting", ["lambda_2", "tau"])
def test_a_setting_that_is_not_finite_is_refused(setting: str, value: float) -> None:
    with pytest.raises(ConfigurationError):
        RunConfig(method_settings={setting: value})


def test_the_number_of_classes_follows_from_the_data_set_or_the_class_names() -> None:
    assert {name: DataConfig(dataset=name).classes for name in DATASETS} == {
        "digits": 10,
        "cifar10": 10,
        "cifar100": 100,
        "flowers102": 102,
        "tiny-imagenet": 200,
    }
    named = DataConfig(dataset="custom", class_names=" cat, dog ,eel ")
    assert (named.classes, named.class_names) == (3, ("cat", "dog", "eel"))


# --- methods and model groups ---

PRESETS = [(name, preset) for name, method in METHODS.items() for preset in method.presets]


def test_every_method_is_registered_under_its_name_with_strategy_and_trainer() -> None:
    for name, method in METHODS.items():
        assert method.name == name
        assert method_named(name) is method
        assert method.strategy.startswith("feddbp_server.strategies.")
        assert method.trainer.startswith("feddbp_client.methods.")
        for setting, field in method.settings.model_fields.items():
            assert field.description, setting
            assert not field.is_required(), setting


def test_the_strategy_of_every_method_can_be_loaded() -> None:
    for method in METHODS.values():
        assert method.load_strategy().__module__ == method.strategy.partition(":")[0]


NOT_WEIGHTS = frozenset({CLUSTER_PROTOTYPES, CLUSTER_CLASSES, GLOBAL_PROTOTYPES, LABEL_COUNTS, NOISE})
"""Tensors of downloads that belong to no network."""


@pytest.mark.parametrize("method", [*METHODS, *(f"{method}:{preset}" for method, preset in PRESETS)])
def test_a_method_whose_downloads_have_weights_says_so(method: str) -> None:
    run = RunConfig(method=method)
    weights = {rule.name for rule in run.download_rules.tensors} - NOT_WEIGHTS
    assert run.method_spec.exchanges_weights(run.settings) == bool(weights)


def test_architectures_are_assigned_by_client_id() -> None:
    group = MODEL_GROUPS["htfe-8-htc-4"]
    assert [group.body_of(client) for client in range(8)] == list(group.bodies)
    assert group.body_of(8) == group.bodies[0]
    assert [group.head_of(client) for client in range(5)] == [
        "linear",
        "hidden512",
        "hidden256",
        "hidden128",
        "linear",
    ]
    transformers = MODEL_GROUPS["htm-10"]
    assert [(transformers.body_of(client), transformers.head_of(client)) for client in (7, 8, 9, 10)] == [
        ("resnet152", "linear"),
        ("vit_b_16", "tanh768"),
        ("vit_b_32", "tanh768"),
        ("cnn4", "linear"),
    ]


@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_a_preset_expands_to_its_settings(method: str, preset: str) -> None:
    settings = dict(METHODS[method].presets[preset].settings)
    short = RunConfig(method=f"{method}:{preset}")
    assert short == RunConfig(method=method, method_settings=settings)
    assert short.method == method
    assert short != RunConfig(method=method), "it changes nothing"


def test_an_explicit_setting_overrides_the_preset() -> None:
    (name, value), *rest = METHODS["feddbp"].presets["gentle"].settings.items()
    run = RunConfig(method="feddbp:gentle", method_settings={name: 2 * value})
    assert run.method_settings[name] == 2 * value
    assert all(run.method_settings[other] == expected for other, expected in rest)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("feddbp:gentel", "feddbp has no preset 'gentel'; it has: gentle"),
        ("local:gentle", "local has no preset 'gentle'; it has none"),
        ("fedpb:gentle", "no method is called 'fedpb'"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_known_ones(method: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunConfig(method=method)
