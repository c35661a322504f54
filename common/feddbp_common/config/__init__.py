"""The configuration of a run: its fields, the sources it is read from, and its errors."""
