"""Files of published data sets and of users' own, read into arrays; one module a format."""
