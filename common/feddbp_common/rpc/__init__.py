"""Shared by both ends of a gRPC channel: credentials, keepalive, refusals."""
