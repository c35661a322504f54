"""FedDBP over the wire; `feddbp.v1` holds the generated messages and stubs."""
