"""Experiments: grids of runs, each a federation of its own, and tables and figures of their results."""
