"""Writes the tables and the figure of docs/results.md from the cells kept in docs/results/quick: `make results`."""
