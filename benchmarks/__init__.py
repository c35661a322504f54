"""Measured ratios against the bars we hold ourselves to; one file a question. Run all of them with `make bench`."""
