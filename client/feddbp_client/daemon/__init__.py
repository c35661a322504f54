"""The session with the server: join, follow, download, work, report, upload, retry."""
