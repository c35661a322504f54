"""Configuration: the fields of a run, the sources it is read from, its form on the wire, and its errors."""
