"""Aggregates the uploads of a round into the global state, and personalises it for each client."""
