"""Serve a queue of prompts with the rows of one engine: whenever a text ends, the next one takes its row.

    python examples/serve_rows.py ENGINE < PROMPTS

One prompt a line. The engine has as many rows as `specc compile --batch` gave it.
"""

import sys
from collections import deque

import specc


def main(path: str, prompts: list[str]) -> None:
    engine = specc.load(path)
    waiting, numbers, steps = deque(enumerate(prompts, 1)), {}, 0
    with engine.session() as session:
        while waiting or session.jobs:
            while waiting and len(session.jobs) < engine.manifest.batch:
                number, prompt = waiting.popleft()
                ids = engine.chat(prompt) if engine.has_chat_template else prompt
                numbers[session.add(ids, max_new_tokens=64)] = number
            for job in session.step():  # one step of every row that is taken
                if job.result:
                    print(f"{numbers.pop(job)}: {job.result.text!r}", flush=True)
            steps += 1
    print(f"{len(prompts)} texts in {steps} steps of up to {engine.manifest.batch} rows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1], [line.strip() for line in sys.stdin if line.strip()])
