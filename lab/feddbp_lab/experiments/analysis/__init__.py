"""The results of cells as statistics: by round and client, their differences and intervals."""
