"""Compile a target and a drafter into one engine, then generate with it.

    python examples/compile_and_generate.py TARGET DRAFTER ENGINE

TARGET and DRAFTER are hub ids, transformers folders or GGUF files; DRAFTER may be `ngram`. More arguments are options
of `specc.compile`, as `backend=eager`.
"""

import sys
from typing import Any

import specc


def main(target: str, drafter: str, output: str, **options: Any) -> None:
    specc.compile(target, drafter, output, quiet=False, **options)
    engine = specc.load(output)
    prompt = "Name three rivers of Europe."
    ids = engine.chat(prompt) if engine.has_chat_template else prompt
    result = engine.generate(ids, max_new_tokens=32)
    print(result.text)
    print(f"{result.stats.block_efficiency:.2f} tokens per pass of the target")
    for piece in engine.stream(ids, max_new_tokens=32, temperature=0.8, seed=1):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    given = dict(option.split("=", 1) for option in sys.argv[4:])
    main(*sys.argv[1:4], **{name: int(value) if value.isdigit() else value for name, value in given.items()})
