"""Acceptance rules, one a file: pure functions on tensors, aten ops (and `specc::noise`) only."""
