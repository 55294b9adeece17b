"""Does speculation pay? Expected tokens and speed-up, from numbers or from an engine's own measurements."""
