"""The subcommands of `feddbp`, one module each."""
