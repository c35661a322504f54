"""Disturbances of a federation during its run, and how each is undone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deploy.trials.project import LEASE_SECONDS, Project, docker, wait_until

_OUTAGE_SECONDS: Final = 3 * LEASE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """A fault of a service while a round is open."""

    title: str
    inject: Callable[[Project], object]
    recover: Callable[[Project], object]


def _nothing(project: Project) -> None:
    """The reference run."""


def _process_killed(title: str, service: str) -> Disturbance:
    def inject(project: Project) -> None:
        # from inside the container: the restart policy does not apply to a container ended by `docker kill`
        docker("exec", project.container(service), "sh", "-c", "kill -KILL -1", check=False)

    def recover(project: Project) -> None:
        wait_until(lambda: project.state(service, "{{.RestartCount}} {{.State.Running}}") == "1 true", "a restart")

    return Disturbance(title=title, inject=inject, recover=recover)


def _container_removed(title: str, service: str) -> Disturbance:
    def inject(project: Project) -> None:
        docker("kill", "--signal", "KILL", project.container(service))

    def recover(project: Project) -> None:
        docker("rm", project.container(service))
        project.start()

    return Disturbance(title=title, inject=inject, recover=recover)


def _paused(title: str, service: str) -> Disturbance:
    def recover(project: Project) -> None:
        time.sleep(_OUTAGE_SECONDS)
        docker("unpause", project.container(service))

    return Disturbance(title=title, inject=lambda project: docker("pause", project.container(service)), recover=recover)


def _cut_off(title: str, service: str) -> Disturbance:
    def inject(project: Project) -> None:
        docker("network", "disconnect", project.network, project.container(service))

    def recover(project: Project) -> None:
        time.sleep(_OUTAGE_SECONDS)
        # with the alias, which the engine does not restore when a container reconnects
        docker("network", "connect", "--alias", service, project.network, project.container(service))

    return Disturbance(title=title, inject=inject, recover=recover)


DISTURBANCES: Final = (
    Disturbance(title="nothing", inject=_nothing, recover=_nothing),
    _process_killed("kill -9 of a client's process", "client-1"),
    _container_removed("a client's container killed and removed", "client-1"),
    _process_killed("kill -9 of the server's process", "server"),
    _container_removed("the server's container killed and removed", "server"),
    _paused(f"a client paused for {_OUTAGE_SECONDS} s", "client-2"),
    _cut_off(f"a client off the network for {_OUTAGE_SECONDS} s", "client-0"),
    _cut_off(f"the server off the network for {_OUTAGE_SECONDS} s", "server"),
    Disturbance(
        title="all containers stopped and started",
        inject=lambda project: project.compose("stop"),
        recover=Project.start,
    ),
)
