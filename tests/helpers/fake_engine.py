"""An engine without a compiler: programs in plain Python that keep the contract of compiled ones and check the runtime.

The models are toys: the next token is a hash of the last three. They read the tokens from the caches (a slot of a
cache holds its token + 1), so a slot that the runtime did not fill, or a length that is wrong, shows in the text. Every
program leaves rubbish wherever the contract allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specc.manifest import EngineManifest, ModelSpec, ProgramSpec, TensorSpec
from specc.runtime.engine import Engine
from specc.runtime.text import Text
from specc.tree import DraftTree

VOCAB = 40
RUBBISH = 777.0


def toy_target(known: Sequence[int], salt: int = 0) -> int:
    """The target's next token."""
    a, b, c = [0, 0, *known][-3:]
    return (a * 7 + b * 5 + c * 3 + salt * 11 + 1) % VOCAB


def toy_drafter(known: Sequence[int], salt: int = 0) -> int:
    """A drafter that agrees with the target on two tokens of three."""
    token = toy_target(known, salt)
    return token if sum(known[-2:]) % 3 else (token + 1) % VOCAB


def toy_text(prompt: Sequence[int], count: int, salt: int = 0) -> list[int]:
    """What plain decoding of the target gives."""
    known = list(prompt)
    for _ in range(count):
        known.append(toy_target(known, salt))
    return known[len(prompt) :]


def salt_of(seed: int, temperature: float, top_k: int, top_p: float, position: int) -> int:
    """What stands for the noise of a sampled token: it depends on every parameter and on the position."""
    return hash((seed, round(temperature, 3), top_k, round(top_p, 3), position)) % 1009


def toy_manifest(
    depth: int = 3,
    context: int = 60,
    chunk: int = 8,
    batch: int = 1,
    rules: Sequence[str] = ("coupled",),
    **changes: Any,
) -> EngineManifest:
    """A manifest for `FakePrograms`, and for real ones of the same signature."""
    kind = changes.get("drafter_kind", "model")
    slots = context + max(depth + 1, chunk) + 1
    models = ("target", "drafter") if kind == "model" else ("target",)
    caches = [f"{m}_{part}_0" for m in models for part in "kv"]
    lengths = [f"{m}_length" for m in models]
    parameters = {"limit": "int64", "draft_limit": "int64", "seed": "int64", "sample": "int64"}
    parameters |= {"temperature": "float32", "top_p": "float32", "top_k": "int64"}
    tensors = [TensorSpec(name="history", shape=(batch, slots), dtype="int64", role="cache")]
    tensors += [TensorSpec(name=n, shape=(batch, 1, slots, 1), dtype="float32", role="cache") for n in caches]
    tensors += [TensorSpec(name=n, shape=(batch,), dtype="int64", role="state") for n in lengths]
    tensors += [TensorSpec(name="active", shape=(batch,), dtype="bool", role="state")]
    tensors += [TensorSpec(name=n, shape=(batch,), dtype=d, role="parameter") for n, d in parameters.items()]
    tensors += [TensorSpec(name="eos", shape=(batch, 8), dtype="int64", role="parameter")]
    tensors += [TensorSpec(name="bucket", shape=(slots,), dtype="uint8", role="bucket")]
    tensors += [TensorSpec(name="tokens", shape=(1, chunk), dtype="int64", role="call")]
    tensors += [TensorSpec(name="start", shape=(1,), dtype="int64", role="call")]
    target = [n for n in caches if n.startswith("target")]
    common = ("limit", "eos", "active", "bucket")
    sampled = ("seed", "sample", "temperature", "top_p", "top_k")
    plain = ("history", *target, "target_length", *common)
    step = ("history", *caches, *lengths, *common, "draft_limit")
    state = ("active", *lengths)
    programs = {
        "plain": _program("plain", plain, ("report", "active", "target_length"), "greedy"),
        "plain_sampled": _program(
            "plain_sampled", (*plain, *sampled), ("report", "active", "target_length"), "coupled"
        ),
        "step": _program("step", step, ("report", *state), "greedy", depth),
        **{f"step_{r}": _program(f"step_{r}", (*step, *sampled), ("report", *state), r, depth) for r in rules},
    }
    for model in models:
        own = tuple(n for n in caches if n.startswith(model))
        programs[f"prefill_{model}"] = _program(f"prefill_{model}", ("tokens", "start", "bucket", *own), ("next",))
    spec = ModelSpec(source="toy", architecture="Toy", digest="0", parameters=0, layers=1, max_positions=context)
    values: dict[str, Any] = {
        "engine_key": "0",
        "specc_version": "0",
        "torch_version": str(torch.__version__),
        "backend": "eager",
        "device": "cpu",
        "dtype": "float32",
        "processor": {},
        "target": spec,
        "drafter": spec if kind == "model" else None,
        "drafter_kind": kind,
        "batch": batch,
        "context": context,
        "slots": slots,
        "chunk": chunk,
        "vocab_size": VOCAB,
        "padded_vocab_size": VOCAB,
        "eos_token_ids": (),
        "tree_paths": DraftTree.chain(depth).paths,
        "tensors": tuple(tensors),
        "programs": programs,
    }
    return EngineManifest(**{**values, **changes})


def _program(name: str, inputs: Sequence[str], outputs: Sequence[str], rule: str = "", depth: int = 0) -> ProgramSpec:
    return ProgramSpec(
        file=f"programs/{name}.pt2",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        weights=(),
        rule=rule,
        tree_paths=DraftTree.chain(depth).paths if rule else (),
    )


@dataclass
class FakePrograms:
    """The programs of `toy_manifest`.

    Attributes:
        calls: names of the programs called, in order.
        interrupt: called with a name and the number of calls before and after each one; may raise.
    """

    manifest: EngineManifest
    calls: list[str] = field(default_factory=list)
    interrupt: Callable[[str, int], None] = lambda name, count: None

    def runners(self) -> dict[str, Callable[[list[Tensor]], Sequence[Tensor]]]:
        return {name: self._runner(name) for name in self.manifest.programs}

    def _runner(self, name: str) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        spec = self.manifest.programs[name]

        def run(arguments: list[Tensor]) -> Sequence[Tensor]:
            named = dict(zip(spec.inputs, arguments, strict=True))
            assert all(t.is_contiguous() for t in arguments)
            assert 2 <= len(named["bucket"]) <= self.manifest.slots - 1
            self.calls.append(name)
            self.interrupt(name, len(self.calls))
            if name.startswith("prefill"):
                results = self._prefill(named)
            else:
                results = self._step(
                    named, 0 if name.startswith("plain") else DraftTree(self.manifest.tree_paths).depth
                )
            self.interrupt(name, len(self.calls))
            return [results[output] for output in spec.outputs]

        return run

    def _prefill(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tokens, start = named["tokens"][0].tolist(), int(named["start"])
        assert len(tokens) == self.manifest.chunk
        for cache in named.values():
            if cache.ndim == 4:
                assert cache.shape[0] == 1
                _read(cache, 0, start, len(named["bucket"]))
                _write(cache, 0, start, tokens)
        return {"next": named["start"] + len(tokens)}

    def _step(self, named: Mapping[str, Tensor], depth: int) -> dict[str, Tensor]:
        rows = [self._row(named, b, depth) for b in range(self.manifest.batch)]
        reports, targets, drafters, active = zip(*rows, strict=True)
        return {
            "report": torch.tensor(reports),
            "target_length": torch.tensor(targets),
            "drafter_length": torch.tensor(drafters),
            "active": torch.tensor(active),
        }

    def _row(self, named: Mapping[str, Tensor], b: int, depth: int) -> tuple[list[int], int, int, bool]:
        """One row of a step: draft, verify, accept, commit."""
        read, history, length = len(named["bucket"]), named["history"], int(named["target_length"][b])
        known = _read(named["target_k_0"], b, length, read) + [int(history[b, length])]
        draft, ahead = [], length
        if depth:
            drafted_from = known
            if "drafter_k_0" in named:
                ahead = int(named["drafter_length"][b])
                pending = history[b, ahead : length + 1].tolist()
                assert ahead <= length and len(pending) <= depth + 1, "the drafter is too far behind"
                drafted_from = _read(named["drafter_k_0"], b, ahead, read) + pending
                for name in ("drafter_k_0", "drafter_v_0"):
                    _write(named[name], b, ahead, pending + [None] * (depth + 1 - len(pending)))
            for _ in range(min(depth, int(named["draft_limit"][b]))):
                draft.append(toy_drafter(drafted_from + draft, self._salt(named, b, len(known) + len(draft))))
            if self.manifest.drafter_kind == "ngram":  # a look-up that finds nothing, or little
                draft = draft[: sum(known) % (depth + 1)]
        block = []
        for token in [*draft, None]:
            block.append(toy_target(known + block, self._salt(named, b, len(known) + len(block))))
            if token != block[-1]:
                break
        accepted = len(block) - 1
        active, total = bool(named["active"][b]), length + 1
        eos = [i for i, token in enumerate(block) if token in named["eos"][b].tolist()]
        count = min(len(block), *([eos[0] + 1] if eos else []), int(named["limit"][b]) - total) if active else 0
        for name in ("target_k_0", "target_v_0"):
            _write(named[name], b, length, [known[-1], *block[:-1], *[None] * (depth + 1 - len(block))])
        padded = block + [VOCAB - 1] * (depth + 1 - len(block))
        history[b, total : total + depth + 1] = torch.tensor(padded)
        done = count > 0 and (total + count >= int(named["limit"][b]) or bool(eos and count == eos[0] + 1))
        return (
            [*padded, count, accepted, len(draft)],
            length + count,
            length + 1 if count else ahead,
            active and not done,
        )

    def _salt(self, named: Mapping[str, Tensor], b: int, position: int) -> int:
        if "seed" not in named:
            return 0
        values = [named[n][b].item() for n in ("seed", "temperature", "top_k", "top_p")]
        return salt_of(int(values[0]), values[1], int(values[2]), values[3], position)


def fake_engine(text: Text | None = None, **changes: Any) -> tuple[Engine, FakePrograms]:
    """An engine over fake programs, and those; `changes` are `toy_manifest`'s."""
    manifest = toy_manifest(**changes)
    programs = FakePrograms(manifest)
    return Engine(manifest, programs.runners(), text, torch.device("cpu")), programs


def _read(cache: Tensor, b: int, length: int, read: int) -> list[int]:
    """The tokens in a cache; none may be missing, and the bucket must cover them."""
    assert length <= read, f"{length} slots filled, {read} read"
    found = [int(value) - 1 for value in cache[b, 0, :length, 0].tolist()]
    assert all(0 <= token < VOCAB for token in found), f"cache holds {found}"
    return found


def _write(cache: Tensor, b: int, start: int, tokens: Sequence[int | None]) -> None:
    """Rows of a cache, a slot per token; None is a row that nobody may read."""
    assert start + len(tokens) <= cache.shape[2], "written past the end of the cache"
    values = [RUBBISH if token is None else token + 1.0 for token in tokens]
    cache[b, 0, start : start + len(tokens), 0] = torch.tensor(values)
