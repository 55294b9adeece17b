"""What decides the next tokens: logits processors, noise, acceptance rules, the cut of a block; one a file.

Pure functions on tensors, aten ops (and `specc::noise`) only; the passes emit them into graphs.
"""
