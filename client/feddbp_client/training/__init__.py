"""Local training: building a client, its rounds, its checkpoint, its device."""
