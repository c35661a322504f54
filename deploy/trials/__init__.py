"""Federations in containers that are disturbed during their run: `make compose-test`."""
