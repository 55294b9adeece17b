"""Random requests join and leave an engine for thousands of steps: texts stay right, memory stays as it is.

    python examples/soak.py ENGINE --steps 10000

The engine needs rows (`specc compile ... --batch 4`). Every request takes parameters at random: length, temperature,
seed, penalties, top-k, top-p, with and without drafts; some are cancelled. Of each sampled or greedy text that ended,
one in `--check` is written again alone and without drafts, and must be the same.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import time
from typing import Any

import specc

FRACTION = 0.05  # of the steps, before memory is first looked at: allocators settle


def resident() -> float:
    """Memory of this process in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def request(pick: random.Random, vocabulary: int, context: int) -> tuple[list[int], dict[str, Any]]:
    """A prompt of ids and its options."""
    prompt = [pick.randrange(vocabulary) for _ in range(pick.randint(1, context // 3))]
    options: dict[str, Any] = {"max_new_tokens": pick.randint(1, context // 3), "eos_token_id": ()}
    if pick.random() < 0.6:
        options |= {"temperature": pick.uniform(0.3, 1.2), "seed": pick.randrange(10_000)}
        options |= {"top_k": pick.choice([0, 20]), "top_p": pick.choice([None, 0.9])}
    if pick.random() < 0.3:
        options |= {"repetition_penalty": 1.1, "presence_penalty": 0.4}
    return prompt, options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--check", type=int, default=20, help="write one text in so many again, alone")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    engine, pick = specc.load(given.engine), random.Random(given.seed)
    size, rows = engine.manifest.vocab_size, engine.manifest.batch
    running: dict[Any, tuple[list[int], dict[str, Any]]] = {}
    kept: list[tuple[list[int], dict[str, Any], list[int]]] = []
    ended = cancelled = tokens = 0
    before, begun = 0.0, time.monotonic()
    with engine.session() as session:
        for step in range(given.steps):
            while len(session.jobs) < rows and (not session.jobs or pick.random() < 0.5):
                prompt, options = request(pick, size, engine.manifest.context)
                running[session.add(prompt, **options)] = prompt, options
            for job in session.step():
                if job.result:
                    ended, tokens, what = ended + 1, tokens + len(job.result.token_ids), running.pop(job)
                    if ended % given.check == 0:
                        kept.append((*what, job.result.token_ids))
            if session.jobs and pick.random() < 0.02:
                job = pick.choice(session.jobs)
                session.cancel(job)
                running.pop(job)
                cancelled += 1
            if step == int(given.steps * FRACTION):
                gc.collect()
                before = resident()
    gc.collect()
    grown, seconds = resident() - before, time.monotonic() - begun
    for prompt, options, text in kept:
        alone = engine.generate(prompt, draft_length=0, **options).token_ids
        if alone != text:
            raise SystemExit(f"a text of {len(text)} tokens is another alone: {prompt} with {options}")
    print(f"{given.steps} steps in {seconds:.0f} s, {ended} texts of {tokens} tokens, {cancelled} cancelled")
    print(f"{len(kept)} texts written again alone, all equal; memory {before:.0f} MiB, then {grown:+.1f} MiB")


if __name__ == "__main__":
    main()
