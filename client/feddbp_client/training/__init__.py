"""Local training: setting up a client, its rounds, its checkpoint, its devices."""
