"""Readers of data set files, published and private; one module per format."""
