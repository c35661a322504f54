"""Child processes: a server and its clients on this machine, and how they are stopped."""
