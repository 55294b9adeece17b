"""How many drafted tokens the target would take, measured on its own greedy answers."""

from __future__ import annotations

from typing import Any

import torch

from .batches import collate
from .drafter import Drafter
from .features import Sample


@torch.inference_mode()
def chain_acceptance(model: Drafter, samples: list[Sample], steps: int, rows: int = 8) -> dict[str, Any]:
    """Acceptance of greedy chains from every position of the answers.

    A drafted token is taken when it and all before it are what the target says, so the chain that was taken is the
    target's own text and one unrolling over that text tells of all chains at once.

    Args:
        steps: tokens of a chain.
        rows: texts side by side.

    Returns:
        `steps`: share of chains whose token of step 1, 2, ... is taken, among those whose earlier ones were; `tokens`:
        mean tokens of a step of decoding, the target's own token included; `kinds`: the first of `steps` by kind.
    """
    model.eval()
    taken, reached = torch.zeros(steps), torch.zeros(steps)
    kinds: dict[str, list[int]] = {}
    order = sorted(range(len(samples)), key=lambda i: len(samples[i].ids))
    for at in range(0, len(order), rows):
        part = [samples[i] for i in order[at : at + rows]]
        batch = collate(part, 1.0)
        alive = torch.zeros(len(batch.ids) * batch.width, dtype=torch.bool)
        alive[batch.bases(steps - 1)] = True  # chains of full length, so that every step is asked the same
        for step, (base, hidden) in enumerate(model.unroll(batch, steps)):
            right = model.choices(hidden, step) == batch.token(base, 2 + step)
            reached[step] += alive[base].sum()
            if step == 0:
                for i, sample in enumerate(part):
                    here = alive[base] & (base // batch.width == i)
                    count = kinds.setdefault(sample.kind, [0, 0])
                    count[0] += int((right & here).sum())
                    count[1] += int(here.sum())
            alive[base] &= right
            taken[step] += alive[base].sum()
    return {
        "steps": [round(x, 4) for x in (taken / reached.clamp(min=1)).tolist()],
        "tokens": round(1 + (taken / reached[0].clamp(min=1)).sum().item(), 4),
        "kinds": {kind: round(a / max(1, b), 4) for kind, (a, b) in sorted(kinds.items())},
    }
