"""What a run tells about the data behind it, measured by attacks."""
