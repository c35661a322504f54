"""Whole federations in containers, disturbed in the middle of their run: `make compose-test`."""
