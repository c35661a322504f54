"""The configuration of a run on the wire: what is sent stays the same, and what is received is never guessed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from earlier_versions import SENT_BY_0_1_0
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.duration_pb2 import Duration as DurationMessage
from google.protobuf.message import Message
from pydantic import BaseModel

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.identity import is_added
from feddbp_common.config.protobuf import ADDED_SETTINGS, proto_name, to_message, values_in
from feddbp_common.config.run import RunConfig, run_from_proto, run_to_proto
from feddbp_common.config.types import Duration, FrozenModel
from feddbp_common.errors import ConfigurationError


@pytest.mark.parametrize(("options", "sent"), SENT_BY_0_1_0)
def test_the_bytes_of_a_configuration_are_those_earlier_versions_sent(options: dict[str, Any], sent: str) -> None:
    run = RunConfig.model_validate(options)
    assert run_to_proto(run).SerializeToString(deterministic=True).hex() == "".join(sent.split())


@pytest.mark.parametrize(("options", "sent"), SENT_BY_0_1_0)
def test_a_configuration_sent_by_an_earlier_version_is_read_unchanged(options: dict[str, Any], sent: str) -> None:
    assert run_from_proto(pb.RunConfig.FromString(bytes.fromhex(sent))) == RunConfig.model_validate(options)


def _unmatched(model: type[BaseModel], message: Descriptor) -> set[str]:
    names = {proto_name(name, field): field for name, field in model.model_fields.items() if not is_added(field)}
    unmatched = names.keys() ^ (set(message.fields_by_name) - {ADDED_SETTINGS})
    for name in names.keys() & set(message.fields_by_name):
        nested, nested_message = names[name].annotation, message.fields_by_name[name].message_type
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            assert nested_message is not None, name
            unmatched |= {f"{name}.{field}" for field in _unmatched(nested, nested_message)}
    return unmatched


def test_every_setting_of_version_0_1_0_has_a_field_in_the_protocol_and_vice_versa() -> None:
    assert _unmatched(RunConfig, pb.RunConfig.DESCRIPTOR) == set()


# --- a server that is newer, broken or hostile ---


def fault_in(message: pb.RunConfig) -> str:
    with pytest.raises(ConfigurationError) as caught:
        run_from_proto(message)
    text = str(caught.value)
    assert "\n" not in text
    prefix = "the server's run configuration cannot be used: "
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def wire_config(*, dtype: int = pb.DTYPE_FLOAT32, fisher: int = pb.FISHER_FORM_SCORES) -> pb.WireConfig:
    """Takes any number, as a received message may hold any."""
    return pb.WireConfig(dtype=pb.DType.ValueType(dtype), fisher=pb.FisherForm.ValueType(fisher))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"method": "fedfuture"}, "no method is called 'fedfuture'"),
        ({"method": "feddbp:harsh"}, "feddbp has no preset 'harsh'"),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1"),
        ({"clients": 100_001}, "clients: input should be less than or equal to 100000"),
        ({"seed": 2**32}, "seed: input should be less than 4294967296"),
        ({"participation": float("nan")}, "participation: input should be a finite number"),
        ({"wire": wire_config(fisher=0)}, "wire.fisher: is not set"),
        ({"wire": wire_config(dtype=0)}, "wire.wire_dtype: is not set"),
        ({"wire": wire_config(dtype=77)}, "wire.wire_dtype: value 77 is not known to feddbp "),
        (
            {"wire": wire_config(dtype=pb.DTYPE_INT32)},
            "wire.wire_dtype: input should be 'float32', 'float16' or 'bfloat16'",
        ),
        ({"data": pb.DataConfig()}, "data.alpha: input should be greater than 0"),
        ({"data": pb.DataConfig(dataset="fashion", classes=3, alpha=1)}, "no data set is called 'fashion'"),
        ({"data": pb.DataConfig(dataset="cifar10", classes=3, alpha=1)}, "cifar10 has 10 classes, not 3"),
        (
            {"data": pb.DataConfig(dataset="cifar10", alpha=1)},
            "data.classes: input should be greater than or equal to 2",
        ),
        ({"training": pb.TrainingConfig()}, "no model group is called ''"),
        (
            {"training": pb.TrainingConfig(model_group="mini-8", local_epochs=1, batch_size=1)},
            "training.batch_size: input should be greater than or equal to 2",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_by_field(change: dict[str, Any], fault: str) -> None:
    message = run_to_proto(RunConfig())
    for name, value in change.items():
        if isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        else:
            setattr(message, name, value)
    assert fault_in(message).startswith(fault)


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ({"quantum": True}, "feddbp has no setting 'quantum'"),
        ({"k_top": "many"}, "setting 'k_top' of feddbp: needs a whole number"),
        ({"k_top": None}, "setting 'k_top' of feddbp: needs a whole number"),
        ({"tau": [1, 2]}, "setting 'tau' of feddbp: needs a number"),
        ({"tau": {"a": {"b": 1}}}, "setting 'tau' of feddbp: needs a number"),
        ({"tau": float("nan")}, "method_settings: has a value that cannot be read"),
        ({"tau": float("inf")}, "method_settings: has a value that cannot be read"),
    ],
)
def test_a_setting_of_a_method_that_this_version_cannot_use_is_refused(added: dict[str, Any], fault: str) -> None:
    message = run_to_proto(RunConfig())
    message.method_settings.update(added)
    assert fault_in(message).startswith(fault)


LATER_FIELD = b"\x50\x01"
"""Field 10, a varint; no configuration message has one."""


@pytest.mark.parametrize(
    ("added", "fault"),
    [
        (LATER_FIELD, "field 10 is not known to feddbp "),
        (b"\x32\x02" + LATER_FIELD, "data.field 10 is not known to feddbp "),
        (b"\x1a\x01x", "field 3 is not known to feddbp "),
    ],
    ids=["of a later version", "nested", "a string where clients is a number"],
)
def test_a_field_that_this_version_cannot_read_is_refused_and_not_ignored(added: bytes, fault: str) -> None:
    assert fault_in(pb.RunConfig.FromString(run_to_proto(RunConfig()).SerializeToString() + added)).startswith(fault)


def test_a_hostile_server_cannot_fill_the_log_of_a_client() -> None:
    message = run_to_proto(RunConfig())
    message.method = "x" * 1_000_000
    assert len(fault_in(message)) <= 500


def test_an_image_size_of_zero_leaves_it_to_the_clients() -> None:
    message = run_to_proto(RunConfig.model_validate({"data": {"dataset": "custom", "classes": 2}}))
    assert message.data.image_size == 0
    assert run_from_proto(message).data.image_size is None


# --- kinds of fields that no run has yet ---


class Timeouts(FrozenModel):
    idle: Duration = timedelta(minutes=1)
    total: Duration | None = None
    retries: int | None = None


@pytest.fixture(scope="module")
def timeouts() -> type[Message]:
    kinds = descriptor_pb2.FieldDescriptorProto
    definition = descriptor_pb2.FileDescriptorProto(name="timeouts.proto", package="feddbp.tests", syntax="proto3")
    definition.dependency.append("google/protobuf/duration.proto")
    message = definition.message_type.add(name="Timeouts")
    for number, name in enumerate(("idle", "total"), 1):
        field = message.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE)
        field.type_name = ".google.protobuf.Duration"
    message.field.add(name="retries", number=3, type=kinds.TYPE_UINT32, proto3_optional=True, oneof_index=0)
    message.oneof_decl.add(name="_retries")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(definition.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("feddbp.tests.Timeouts"))


@pytest.mark.parametrize(
    "config",
    [
        Timeouts(),
        Timeouts(idle=timedelta(0), total=timedelta(milliseconds=1500), retries=0),
    ],
)
def test_durations_and_optional_fields_are_converted(config: Timeouts, timeouts: type[Message]) -> None:
    sent = timeouts.FromString(to_message(config, timeouts).SerializeToString())
    assert Timeouts.model_validate(values_in(sent, Timeouts)) == config
    assert sent.HasField("retries") == (config.retries is not None)


def test_a_duration_beyond_what_python_can_hold_is_refused(timeouts: type[Message]) -> None:
    with pytest.raises(ConfigurationError, match="idle: has a value that cannot be read"):
        values_in(timeouts(idle=DurationMessage(seconds=2**62)), Timeouts)
