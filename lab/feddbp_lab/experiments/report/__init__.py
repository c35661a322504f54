"""Writes tables, figures and a page from the results of cells."""
