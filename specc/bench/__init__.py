"""Compiled against eager, measured honestly."""
