"""The dashboard: a page of a live run, of a finished one, or of many, served by a process of its own."""
