"""Differential privacy of sums and counts of fixed features: exact noise, its epsilon, what is released. No I/O."""
