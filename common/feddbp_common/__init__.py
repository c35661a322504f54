"""What server and client share: the wire, the configuration, the methods by name. No torch, no event loops."""
