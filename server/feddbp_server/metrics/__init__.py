"""Prometheus metrics of the run and of gRPC calls.

Imported only with --metrics-port; a server without it has neither the interceptor nor the thread.
"""

from feddbp_server.metrics.monitor import Monitor

__all__ = ["Monitor"]
