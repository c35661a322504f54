"""The client's half of every method, one file each."""
