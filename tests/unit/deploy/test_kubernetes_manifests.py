"""The Kubernetes manifests: complete, hardened, and in agreement with the commands they start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deploy_files import CHECKOUT, KUBERNETES, environment, pods, stages, yaml_documents

from feddbp_client.config import ClientConfig
from feddbp_common.config.command_line import settings_parser
from feddbp_common.config.sources import resolve
from feddbp_server.config import ServerConfig

KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
CLIENT_IDS = sorted(int(path.name.removeprefix("client-")) for path in (KUBERNETES / "clients").iterdir())
PODS = dict(pods())
EVERY_POD = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def client_patches(client_id: int) -> dict[str, Any]:
    """What a client's own patches set, by path."""
    (kustomization,) = yaml_documents(KUBERNETES / "clients" / f"client-{client_id}" / "kustomization.yaml")
    assert kustomization["nameSuffix"] == f"-{client_id}"
    (patch,) = kustomization["patches"]
    found = re.findall(r"path: (\S+), value: (\S+)}", patch["patch"])
    return dict(found)


def at(tree: Any, path: str) -> Any:
    for key in path.strip("/").split("/"):
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    return tree


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(KUBERNETES)))
def test_what_a_kustomization_names_is_there(path: Path) -> None:
    (kustomization,) = yaml_documents(path)
    for name in kustomization.get("resources", ()):
        resource = path.parent / name
        assert (resource / "kustomization.yaml").exists() or resource.is_file(), name


def test_no_manifest_is_left_out() -> None:
    named = {
        (path.parent / name).resolve()
        for path in KUSTOMIZATIONS
        for name in yaml_documents(path)[0].get("resources", ())
    }
    manifests = {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert {path.resolve() for path in manifests} <= named


@EVERY_POD
def test_every_pod_is_hardened(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@EVERY_POD
def test_every_pod_says_what_it_takes(pod: dict[str, Any]) -> None:
    resources = container(pod)["resources"]
    assert set(resources["requests"]) == set(resources["limits"]) == {"cpu", "memory"}


@pytest.mark.parametrize("kind", ["server", "client"])
def test_volumes_are_where_the_image_looks_for_them(kind: str) -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in container(PODS[f"feddbp-{kind}"])["volumeMounts"]}
    image = environment(stages(CHECKOUT / "deploy" / f"{kind}.Dockerfile")[""])
    assert mounted == {"certs": image["FEDDBP_CERTS"], "state": image["FEDDBP_STATE_DIR"], "tmp": "/tmp"}


def test_the_server_is_asked_by_grpc_over_tls() -> None:
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(PODS["feddbp-server"])[probe]["exec"] == {"command": ["feddbp", "health"]}


def test_the_server_expects_the_clients_there_are() -> None:
    arguments = container(PODS["feddbp-server"])["args"]
    flags = settings_parser("x", "", ServerConfig).parse_args(arguments)
    config = resolve(ServerConfig, flags, env_prefix="FEDDBP_", environ={})
    assert config.run.clients == config.rounds.min_clients == len(CLIENT_IDS)
    (everything,) = yaml_documents(KUBERNETES / "kustomization.yaml")
    assert {f"clients/client-{number}" for number in CLIENT_IDS} <= set(everything["resources"])
    assert list(range(len(CLIENT_IDS))) == CLIENT_IDS


@pytest.mark.parametrize("client_id", CLIENT_IDS)
def test_every_client_has_its_own_id_and_key(client_id: int) -> None:
    patches = client_patches(client_id)
    job = next(doc for doc in yaml_documents(KUBERNETES / "client" / "job.yaml"))
    assert {path: at(job, path) for path in patches} == {
        path: re.sub(r"\d+$", "ID", value) for path, value in patches.items()
    }
    assert sorted(patches.values()) == [f"--id={client_id}", f"feddbp-client-{client_id}"]


def test_each_secret_holds_what_its_party_needs_and_no_more() -> None:
    (kustomization,) = yaml_documents(KUBERNETES / "certs" / "kustomization.yaml")
    secrets = {generator["name"]: set(generator["files"]) for generator in kustomization["secretGenerator"]}
    expected = {
        f"feddbp-client-{number}": {
            f"client-{number}/{file}" for file in ("ca.pem", f"client-{number}.pem", f"client-{number}.key")
        }
        for number in CLIENT_IDS
    }
    files = ("ca.pem", "server.pem", "server.key", "probe.pem", "probe.key")
    assert secrets == {"feddbp-server": {f"server/{file}" for file in files}, **expected}


def test_a_client_that_cannot_succeed_is_not_tried_again() -> None:
    (job,) = yaml_documents(KUBERNETES / "client" / "job.yaml")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [2, 4, 5]
    assert rules[0]["onExitCodes"]["containerName"] == container(PODS["feddbp-client"])["name"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # the rules ask for it


def test_a_clients_arguments_are_options_of_the_command() -> None:
    arguments = [argument.replace("ID", "3") for argument in container(PODS["feddbp-client"])["args"]]
    flags = settings_parser("x", "", ClientConfig).parse_args([*arguments, "--certs=/certs"])
    config = resolve(ClientConfig, flags, env_prefix="FEDDBP_", environ={})
    (service,) = yaml_documents(KUBERNETES / "server" / "service.yaml")
    assert config.identity.server == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_nobody_is_reached_but_the_server() -> None:
    policies = {
        policy["metadata"]["name"]: policy["spec"]
        for policy in yaml_documents(KUBERNETES / "namespace" / "networkpolicy.yaml")
    }
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ingress = [rule for spec in policies.values() for rule in spec.get("ingress", ())]
    assert len(ingress) == 1
    assert ingress[0]["ports"] == [{"protocol": "TCP", "port": 50051}]
