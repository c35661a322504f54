"""`feddbp gpu-check`: short trainings on a device, each in a process of its own, and what they say about it."""
