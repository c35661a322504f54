"""Runs in experiment trackers: one event stream of a run, several sinks."""
