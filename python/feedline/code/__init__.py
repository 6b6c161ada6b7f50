"""Loaders of Python code: what they read, in which order, and who runs it."""
