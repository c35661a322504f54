"""One run: the pure state machine, the engine that makes it durable, and the calls on it."""
