"""Prototypes averaged by confidence: a method in a package of its own."""
