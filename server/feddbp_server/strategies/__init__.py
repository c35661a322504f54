"""The server's half of every method, one file a method."""

from feddbp_server.strategies.base import RunFacts, Shapes, Strategy, UnusableStateError, Upload

__all__ = ["RunFacts", "Shapes", "Strategy", "UnusableStateError", "Upload"]
