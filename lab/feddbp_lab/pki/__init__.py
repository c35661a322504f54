"""Certificates and tokens of a federation."""
