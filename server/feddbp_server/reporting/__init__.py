"""What a run leaves on disk for people: event log, audit log, metrics and summary."""
