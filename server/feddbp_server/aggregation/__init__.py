"""From the uploads of a round to the global state, and from it to each client's own."""
