from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from feddbp.v1 import federation_pb2 as pb

PROTO_ROOT = Path(pb.__file__).parents[2]
DEFINITION = "feddbp/v1/federation.proto"
GENERATED = ["federation_pb2.py", "federation_pb2.pyi", "federation_pb2_grpc.py", "federation_pb2_grpc.pyi"]

Place = tuple[int, ...]


def protoc(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO_ROOT}", *arguments, str(PROTO_ROOT / DEFINITION)],
        check=True,
        capture_output=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything `make proto` writes, and the description of the file with its comments, made in one go."""
    out = tmp_path_factory.mktemp("proto")
    beside = Path(sys.executable).parent
    protoc(
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--plugin=protoc-gen-mypy={beside / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={beside / 'protoc-gen-mypy_grpc'}",
        f"--mypy_out={out}",
        f"--mypy_grpc_out={out}",
        "--include_source_info",
        f"--descriptor_set_out={out / 'described'}",
    )
    return out


@pytest.fixture(scope="module")
def definition(generated: Path) -> FileDescriptorProto:
    (described,) = FileDescriptorSet.FromString((generated / "described").read_bytes()).file
    return described


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_modules_are_what_the_definition_makes(generated: Path, name: str) -> None:
    committed = PROTO_ROOT / "feddbp" / "v1" / name
    fresh = generated / "feddbp" / "v1" / name
    assert committed.read_text() == fresh.read_text(), f"{name} is stale: run `make proto`"


def _in_messages(messages: list[DescriptorProto], path: Place, field_of_parent: int) -> Iterator[tuple[Place, str]]:
    for index, message in enumerate(messages):
        if message.options.map_entry:  # made up by the compiler for a map; its field has the comment
            continue
        here = (*path, field_of_parent, index)
        yield here, message.name
        for number, field in enumerate(message.field):
            yield (*here, DescriptorProto.FIELD_FIELD_NUMBER, number), f"{message.name}.{field.name}"
        for number, choice in enumerate(message.oneof_decl):
            if not choice.name.startswith("_"):  # what `optional` makes has no place in the source
                yield (*here, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, number), f"{message.name}.{choice.name}"
        yield from _in_enums(list(message.enum_type), here, DescriptorProto.ENUM_TYPE_FIELD_NUMBER)
        yield from _in_messages(list(message.nested_type), here, DescriptorProto.NESTED_TYPE_FIELD_NUMBER)


def _in_enums(enums: list[EnumDescriptorProto], path: Place, field_of_parent: int) -> Iterator[tuple[Place, str]]:
    for index, enum in enumerate(enums):
        here = (*path, field_of_parent, index)
        yield here, enum.name
        for number, value in enumerate(enum.value):
            yield (*here, EnumDescriptorProto.VALUE_FIELD_NUMBER, number), f"{enum.name}.{value.name}"


def _in_services(services: list[ServiceDescriptorProto]) -> Iterator[tuple[Place, str]]:
    for index, service in enumerate(services):
        here = (FileDescriptorProto.SERVICE_FIELD_NUMBER, index)
        yield here, service.name
        for number, method in enumerate(service.method):
            yield (*here, ServiceDescriptorProto.METHOD_FIELD_NUMBER, number), f"{service.name}.{method.name}"


def declared(definition: FileDescriptorProto) -> dict[Place, str]:
    return dict(
        (
            *_in_messages(list(definition.message_type), (), FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER),
            *_in_enums(list(definition.enum_type), (), FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER),
            *_in_services(list(definition.service)),
        )
    )


def test_everything_in_the_protocol_has_a_comment_of_its_own(definition: FileDescriptorProto) -> None:
    commented = {
        tuple(location.path) for location in definition.source_code_info.location if location.leading_comments.strip()
    }
    bare = [name for path, name in declared(definition).items() if path not in commented]
    assert bare == []


def test_the_walk_over_the_protocol_finds_all_there_is(definition: FileDescriptorProto) -> None:
    found = set(declared(definition).values())
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        assert {f"{message.name}.{field.name}" for field in message.fields} | {message.name} <= found
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert {f"{enum.name}.{value.name}" for value in enum.values} <= found
    for service in pb.DESCRIPTOR.services_by_name.values():
        assert {f"{service.name}.{method.name}" for method in service.methods} <= found
    assert {"Federation.Upload", "Tensor.shape", "Phase.PHASE_PAUSED", "FisherScores.form"} <= found


def test_every_enum_begins_with_a_value_that_says_it_is_not_set(definition: FileDescriptorProto) -> None:
    enums = list(definition.enum_type) + [enum for message in definition.message_type for enum in message.enum_type]
    assert enums
    for enum in enums:
        prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.name).strip("_")
        if enum.name == "DType":
            prefix = "DTYPE"
        first = enum.value[0]
        assert (first.name, first.number) == (f"{prefix}_UNSPECIFIED", 0)
        assert all(value.name.startswith(prefix + "_") for value in enum.value)


def test_no_unary_message_can_carry_a_tensor(definition: FileDescriptorProto) -> None:
    """A tensor's bytes travel only in chunks, and chunks only in streams."""
    messages = {message.name: message for message in definition.message_type}

    def reaches_bytes(name: str) -> bool:
        return (
            any(
                (field.type == descriptor_pb2.FieldDescriptorProto.TYPE_BYTES and field.name == "data")
                or reaches_bytes(field.type_name.rpartition(".")[2])
                for field in messages[name].field
                if field.type_name.rpartition(".")[2] in messages or not field.type_name
            )
            if name in messages
            else False
        )

    for service in definition.service:
        for method in service.method:
            if not method.client_streaming:
                assert not reaches_bytes(method.input_type.rpartition(".")[2]), method.name
            if not method.server_streaming:
                assert not reaches_bytes(method.output_type.rpartition(".")[2]), method.name
    assert reaches_bytes("UploadPart")


def test_protocol_names_are_those_the_design_gives() -> None:
    calls = {name: sorted(service.methods_by_name) for name, service in pb.DESCRIPTOR.services_by_name.items()}
    assert calls == {
        "Federation": ["Download", "Follow", "GetRun", "Join", "Leave", "Report", "Upload"],
        "Control": ["GetStatus", "Pause", "Resume", "Stop", "WatchStatus"],
    }
    assert pb.DESCRIPTOR.package == "feddbp.v1"
