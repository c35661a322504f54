"""Writes the tables of docs/results.md and of the README, and their figure, from docs/results/quick: `make results`."""
