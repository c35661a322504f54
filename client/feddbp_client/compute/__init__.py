"""Where and how clients compute: devices, precision, memory, threads, and what runs at the same time."""
