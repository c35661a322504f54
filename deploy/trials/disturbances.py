"""What is done to a federation in the middle of its run, and what makes good for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deploy.trials.project import LEASE_SECONDS, Project, docker, wait_until

_AWAY_SECONDS: Final = 3 * LEASE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Something that happens to a service while a round is open."""

    title: str
    harm: Callable[[Project], object]
    heal: Callable[[Project], object]


def _nothing(project: Project) -> None:
    """The run all others are compared with."""


def _process_killed(title: str, service: str) -> Disturbance:
    def harm(project: Project) -> None:
        # From inside, as the kernel would do it: what `docker kill` ends, the restart policy leaves alone.
        docker("exec", project.container(service), "sh", "-c", "kill -KILL -1", check=False)

    def heal(project: Project) -> None:
        wait_until(lambda: project.state(service, "{{.RestartCount}} {{.State.Running}}") == "1 true", "a restart")

    return Disturbance(title=title, harm=harm, heal=heal)


def _container_removed(title: str, service: str) -> Disturbance:
    def harm(project: Project) -> None:
        docker("kill", "--signal", "KILL", project.container(service))

    def heal(project: Project) -> None:
        docker("rm", project.container(service))
        project.start()

    return Disturbance(title=title, harm=harm, heal=heal)


def _paused(title: str, service: str) -> Disturbance:
    def heal(project: Project) -> None:
        time.sleep(_AWAY_SECONDS)
        docker("unpause", project.container(service))

    return Disturbance(title=title, harm=lambda project: docker("pause", project.container(service)), heal=heal)


def _cut_off(title: str, service: str) -> Disturbance:
    def harm(project: Project) -> None:
        docker("network", "disconnect", project.network, project.container(service))

    def heal(project: Project) -> None:
        time.sleep(_AWAY_SECONDS)
        # under its name: the engine gives a container that comes back none but its id
        docker("network", "connect", "--alias", service, project.network, project.container(service))

    return Disturbance(title=title, harm=harm, heal=heal)


DISTURBANCES: Final = (
    Disturbance(title="nothing", harm=_nothing, heal=_nothing),
    _process_killed("kill -9 of a client's process", "client-1"),
    _container_removed("a client's container killed and removed", "client-1"),
    _process_killed("kill -9 of the server's process", "server"),
    _container_removed("the server's container killed and removed", "server"),
    _paused(f"a client paused for {_AWAY_SECONDS} s", "client-2"),
    _cut_off(f"a client off the network for {_AWAY_SECONDS} s", "client-0"),
    _cut_off(f"the server off the network for {_AWAY_SECONDS} s", "server"),
    Disturbance(title="all stopped, all started", harm=lambda project: project.compose("stop"), heal=Project.start),
)
