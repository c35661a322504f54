"""What Prometheus is told: the run as the coordinator knows it, and the calls as they end.

Loaded only when somebody asks for metrics; a server without them has neither the interceptor nor the thread.
"""

from feddbp_server.metrics.monitor import Monitor

__all__ = ["Monitor"]
