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
    from ray.cluster_utils import Cluster

    os.environ[_SUBREAPER] = "true"
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield RayCluster(cluster)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
        del os.environ[_SUBREAPER]
