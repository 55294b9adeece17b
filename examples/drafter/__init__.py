"""Parts of `examples/train_drafter.py`, one concept a file, in the order in which they run:

prompts   chat prompts put together from lists; train and held-out sets share no subject
target    load a target, decode many greedy rows at once
shards    what the target said, with its next-token distributions, in files
start     first weights of the drafter, taken from the target, with a copying circuit
optimisers  Muon for the layers, Adam by rows for the embedding
train     distillation with checkpoints
measure   agreement with the target on held-out answers, predicted speed-up
"""
