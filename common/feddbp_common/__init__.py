"""Shared by server and client: wire format, configuration and method contracts. No torch, no event loops."""
