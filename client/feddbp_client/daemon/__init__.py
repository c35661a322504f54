"""The daemon: session loop, round worker, event stream, connection, backoff."""
