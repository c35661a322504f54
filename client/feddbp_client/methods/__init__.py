"""The client's half of each method, one file per method."""
