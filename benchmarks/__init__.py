"""Benchmarks: measured ratios and their targets, one file per question. `make bench` runs all of them."""
