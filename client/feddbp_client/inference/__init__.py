"""A trained client after the run: restore, predict, export."""
