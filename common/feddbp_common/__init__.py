"""Shared by server and client: wire format, configuration and method contracts. No torch, no event loops."""

import os

# gRPC's C core writes lines of its own to stderr, about handshakes, forks and ports in use: they would break JSON logs,
# and say no more than the errors of calls do. It reads the level once, when `grpc` is imported, which our commands do
# after this package. A level that is set is kept, for debugging.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
