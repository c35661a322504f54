"""Files of published data sets and of users' own, read into arrays: one module a format, and what they share.

A published data set is read by a function here, listed with its files in `feddbp_client.data.datasets`, and described
in `feddbp_common.config.catalog`.
"""
