"""Runs the cells of an experiment: campaign, runner, output directory, progress display."""
