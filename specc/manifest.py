"""EngineManifest: the one file on which compile time and run time meet, `manifest.json`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import EngineFormatError, EngineVersionError

FORMAT = 1
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that the runtime allocates.

    Attributes:
        role: `cache` (zeros, written in place), `state` (handed on from call to call), `parameter` (set per request),
            `bucket` (a dummy whose length is the number of cache slots read) or `call` (given at each call).
        shape: sizes; the bucket's is its largest.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """One saved program and how it is called.

    Attributes:
        file: path inside the engine.
        inputs: names of its arguments in order (names of `EngineManifest.tensors`).
        outputs: names of what it returns in order; an output with the name of an input replaces it.
        weights: names of the stored weights that it reads.
        passes: report of the passes: name, rewrites, seconds, nodes.
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    passes: tuple[dict[str, Any], ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What an engine says of a model that went into it."""

    source: str
    architecture: str
    digest: str
    parameters: int
    layers: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManifest:
    """Everything the runtime needs to know; see DESIGN section 2 for the folder around it.

    Attributes:
        backend: `inductor` or `eager`.
        batch: rows B.
        context: longest text in tokens, prompt included.
        slots: S, slots of every cache: context and slack.
        chunk: tokens per prefill call.
        vocab_size: ids that may be given; `padded_vocab_size` rows come out of the model.
        drafter_kind: `model` or `ngram`.
        tree_paths: the draft tree (`DraftTree.paths`), the root first.
        tensors: everything the runtime allocates, by name.
        programs: by name: `plain`, `step`, `plain_sampled`, `step_coupled`, `step_rejection`, `prefill_target`,
            `prefill_drafter`.
        processor: for CPU programs `{"isa": ..., "flags": [...]}`.
        files: SHA-256 of every other file of the engine, by path inside it.
        cost: measured seconds per call of each program, with the conditions, or empty.
        self_check: `{"prompt": ids, "tokens": ids}`, greedy text seen at compile time, or empty.
        config: the choices of `CompileConfig`.
    """

    format: int = FORMAT
    engine_key: str
    specc_version: str
    torch_version: str
    backend: str
    device: str
    dtype: str
    processor: dict[str, Any]
    target: ModelSpec
    drafter: ModelSpec | None
    drafter_kind: str
    batch: int
    context: int
    slots: int
    chunk: int
    vocab_size: int
    padded_vocab_size: int
    eos_token_ids: tuple[int, ...]
    tree_paths: tuple[tuple[int, ...], ...]
    tensors: tuple[TensorSpec, ...]
    programs: dict[str, ProgramSpec]
    files: dict[str, str] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    self_check: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The manifest as text, stable for equal content."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def read(cls, engine: Path) -> EngineManifest:
        """Read and check `engine/manifest.json`.

        Raises:
            EngineFormatError: no folder, no manifest, or one that is truncated or has other fields.
            EngineVersionError: written in another format version.
        """
        path = engine / MANIFEST_NAME
        if not engine.is_dir():
            raise EngineFormatError(
                f"{engine}: no such engine folder; make one with specc compile TARGET DRAFTER -o {engine}"
            )
        if not path.is_file():
            raise EngineFormatError(
                f"{engine}: holds no {MANIFEST_NAME}, so it is not an engine; give the folder that specc compile wrote"
            )
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as e:
            raise EngineFormatError(f"{path}: not readable as JSON ({e}); compile the engine again") from e
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise EngineVersionError(
                f"{path}: format {found!r}, this specc reads format {FORMAT}; compile the engine again with this specc"
            )
        try:
            return _build(raw)
        except (TypeError, KeyError, ValueError, AttributeError) as e:
            raise EngineFormatError(f"{path}: fields do not fit format {FORMAT} ({e}); compile the engine again") from e


def _build(raw: dict[str, Any]) -> EngineManifest:
    raw = dict(raw)
    raw["target"] = ModelSpec(**raw["target"])
    raw["drafter"] = ModelSpec(**raw["drafter"]) if raw["drafter"] else None
    raw["eos_token_ids"] = tuple(raw["eos_token_ids"])
    raw["tree_paths"] = tuple(tuple(path) for path in raw["tree_paths"])
    raw["tensors"] = tuple(TensorSpec(**{**t, "shape": tuple(t["shape"])}) for t in raw["tensors"])
    raw["programs"] = {
        name: ProgramSpec(
            file=p["file"],
            inputs=tuple(p["inputs"]),
            outputs=tuple(p["outputs"]),
            weights=tuple(p["weights"]),
            passes=tuple(p["passes"]),
            key=p["key"],
        )
        for name, p in raw["programs"].items()
    }
    return EngineManifest(**raw)
