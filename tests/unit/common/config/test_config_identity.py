"""The identity of a configuration stays the same when settings are added, and features follow from added settings."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from earlier_versions import SENT_BY_0_1_0
from pydantic import Field

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.features import missing_features, required_features, supported_features
from feddbp_common.config.identity import added_in, added_names, added_settings, canonical
from feddbp_common.config.protobuf import to_message, values_in
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.config.training import TrainingConfig
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS

ADDED = added_in("9.0.0")


class GrownTraining(TrainingConfig):
    """Local training: as a later version has it."""

    blur: Literal["none", "box"] = Field("none", description="", json_schema_extra=ADDED)
    passes: int = Field(1, description="", json_schema_extra=ADDED)


class NewGroup(FrozenModel):
    """New: a group that a later version adds."""

    level: float = Field(0.0, description="", json_schema_extra=ADDED)


class GrownRun(RunConfig):
    """Run: as a later version has it."""

    training: GrownTraining = GrownTraining()
    new: NewGroup = Field(NewGroup(), json_schema_extra=ADDED)


def grown(**values: Any) -> GrownRun:
    return GrownRun.model_validate(values)


def test_added_settings_at_their_default_change_no_fingerprint() -> None:
    assert grown().fingerprint == RunConfig().fingerprint
    assert grown().canonical_json() == RunConfig().canonical_json()


@pytest.mark.parametrize(
    "values", [{"training": {"blur": "box"}}, {"training": {"passes": 2}}, {"new": {"level": 0.5}}]
)
def test_an_added_setting_that_is_used_changes_the_fingerprint(values: dict[str, Any]) -> None:
    assert grown(**values).fingerprint != RunConfig().fingerprint


def test_the_same_value_in_another_spelling_is_the_same_run() -> None:
    assert grown(training={"passes": "2", "learning_rate": "0.50"}).fingerprint == (
        grown(training={"learning_rate": 0.5, "passes": 2}).fingerprint
    )


def test_added_settings_are_listed_by_dotted_name() -> None:
    run = grown(training={"blur": "box"}, new={"level": 0.5})
    assert added_settings(run) == {"training.blur": "box", "new.level": 0.5}
    assert {"training.blur", "training.passes", "new.level"} <= added_names(GrownRun)
    assert canonical(run)["new"] == {"level": 0.5}


def test_added_settings_travel_where_the_message_has_no_field_for_them() -> None:
    run = grown(training={"blur": "box", "passes": 3}, new={"level": 0.5})
    message = pb.RunConfig.FromString(to_message(run, pb.RunConfig).SerializeToString())
    assert GrownRun.model_validate(values_in(message, GrownRun)) == run


@pytest.mark.parametrize(("options", "sent"), SENT_BY_0_1_0)
def test_a_run_without_added_settings_has_the_bytes_it_had(options: dict[str, Any], sent: str) -> None:
    message = to_message(grown(**options), pb.RunConfig)
    assert message.SerializeToString(deterministic=True).hex() == "".join(sent.split())


def test_a_setting_of_a_later_version_is_refused_by_name() -> None:
    message = run_to_proto(RunConfig())
    message.added_settings.update({"training.blur": "box"})
    with pytest.raises(ConfigurationError, match=r"'training\.blur' is not known to feddbp"):
        run_from_proto(message)


def test_a_plain_run_needs_no_feature() -> None:
    for name in METHODS:
        assert required_features(RunConfig(method=name)) == []


def test_a_run_needs_the_features_it_uses() -> None:
    assert required_features(grown(training={"blur": "box"})) == ["training.blur"]
    assert missing_features(["training.blur"], supported_features("feddbp")) == ["training.blur"]


def test_a_setting_of_an_added_group_needs_no_mark_of_its_own() -> None:
    class Plain(FrozenModel):
        """Plain: a group whose settings are not marked."""

        level: float = 0.0
        labels: dict[str, str] = Field({"a": "b"})

    class Grown(RunConfig):
        """Run: with the group."""

        plain: Plain = Field(Plain(), json_schema_extra=ADDED)

    assert Grown().fingerprint == RunConfig().fingerprint
    assert added_settings(Grown(plain=Plain(level=1.0, labels={}))) == {"plain.level": 1.0, "plain.labels": {}}
    assert {"plain.level", "plain.labels"} <= added_names(Grown)
