"""A Ray of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

import pytest

needs_ray: Final = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: extra [ray]")
_OBJECT_STORE: Final = 80_000_000
_SUBREAPER: Final = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


class RayCluster:
    """Nodes of one CPU each, as processes of this machine."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address

    def add_node(self) -> Any:
        node = self._cluster.add_node(num_cpus=1, object_store_memory=_OBJECT_STORE)
        self._cluster.wait_for_nodes()
        return node

    def kill_node(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A head with one CPU."""
    os.environ[_SUBREAPER] = "true"
    cluster = _started()
    try:
        yield RayCluster(cluster)
    finally:
        cluster.shutdown()
        del os.environ[_SUBREAPER]


def _started(attempts: int = 4) -> Any:
    """The cluster of a head; Ray gives up on a node that takes longer than 30 s, as it may on a busy machine."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    try:
        return Cluster(initialize_head=True, head_node_args=head)
    except Exception as error:
        if attempts == 1 or "timed out during startup" not in str(error):
            raise
        return _started(attempts - 1)
