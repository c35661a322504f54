"""Experiments: grids of runs, each run a federation of its own, and the tables and figures made of them."""
