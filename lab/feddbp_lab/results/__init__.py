"""Reads the files a run has written, and draws curves from them."""
