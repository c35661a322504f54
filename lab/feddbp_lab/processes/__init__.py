"""ChildProcess processes: a server and its clients on this machine, and what ends them."""
