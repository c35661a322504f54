"""Version 1 of the protocol."""
