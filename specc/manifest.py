"""EngineManifest: the one file on which compile time and run time meet, `manifest.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import typing
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from .drafter import KINDS, MEDUSA, WITH_CACHE
from .errors import ConfigError, EngineFormatError, EngineVersionError
from .tree import DraftTree

FORMAT = 3
MAX_BATCH = 8  # rows of an engine at most
LOSSY = ("typical",)  # acceptance rules under which a text does not follow the target's law
LOSSY_DRAFTERS = (MEDUSA,)  # whose engines may have such rules
MOST_LOOKUP = 8  # longer suffixes count as this long
MANIFEST_NAME = "manifest.json"
CHECKSUM = "checksum"  # in the file: of everything else in it
EMBEDDED_BYTES = 1024  # a weight up to this size stands in an ONNX model itself, which wants to see indices
WEIGHTS_NAME = "weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor that the runtime allocates.

    Attributes:
        role: `cache` (zeros, written in place), `state` (handed on from call to call), `draft` (state that only drafts
            depend on, forgotten with the text), `parameter` (set per request), `bucket` (a dummy whose length is the
            number of cache slots read) or `call` (given at each call).
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
        rule: acceptance rule of a step; empty for prefill, and for a program that only drafts.
        tree_paths: what a step drafts (`DraftTree.paths`), the root alone for a plain step; empty for prefill.
        batch: rows that it works on, 1 or the engine's; with 1 it is called on the buffers of one row.
        draft: name of the program that drafts for this step, on `EngineManifest.draft_device`; empty where a step does
            so itself.
        drafts: whether it runs a drafter alone, and so on that device.
        passes: report of the passes: name, rewrites, seconds, nodes.
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    rule: str = ""
    tree_paths: tuple[tuple[int, ...], ...] = ()
    batch: int = 1
    draft: str = ""
    drafts: bool = False
    passes: tuple[dict[str, Any], ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What an engine says of a model that went into it.

    Attributes:
        taps: of a drafter that reads hidden states: layers of the target whose input it reads, in order; empty where it
            reads the input of the head.
    """

    source: str
    architecture: str
    digest: str
    parameters: int
    layers: int
    max_positions: int
    taps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineManifest:
    """Everything the runtime needs to know of an engine.

    Attributes:
        backend: one of `config.BACKENDS`.
        batch: rows B.
        context: longest text in tokens, prompt included.
        slots: S, slots of every cache: context and slack.
        chunk: tokens per prefill call.
        vocab_size: ids that may be given; `padded_vocab_size` rows come out of the model.
        drafter_kind: one of `drafter.KINDS`.
        lookup: tokens of the longest suffix whose occurrence before says how drafts will fare, `MOST_LOOKUP` or fewer;
            0 where drafts come from elsewhere, or are looked up in other texts too.
        draft_vocabulary: empty where a drafter has the target's ids, else `target_ids`, `drafter_ids` and how many
            of the target's are `draftable`.
        tree_paths: the draft tree (`DraftTree.paths`), the root first.
        tensors: everything the runtime allocates, by name.
        programs: by name: `plain`, `step`, `plain_sampled`, `step_coupled`, `step_rejection`, `prefill_target`,
            `prefill_drafter` (and `prefill_drafter2`, ...); with `_k3` those of other draft lengths (`--ladder`), with
            `_b4` those of the batch. The runtime picks by what a `ProgramSpec` says, never by name.
        processor: for native programs `{"isa": ..., "flags": [...]}`, for plans `tensorrt`, its release; and for both
            `gpus`: `name` and `capability` by device.
        files: SHA-256 of every other file of the engine, by path inside it.
        cost: empty where nothing was measured, else `seconds` per call of each program, one for each of `tokens` (in
            the cache), the least of `rounds`, with `threads`; and `acceptance` of greedy drafts on `prompts` texts of
            at most `new_tokens`: by program `steps`, those with `drafts`, and how often each level was `accepted`; with
            `lookup`, `by_match` has the same for each length of the suffix that occurred before, from 0 on.
        self_check: `{"prompt": ids, "tokens": ids}`, greedy text seen at compile time, or empty.
        config: the choices of `CompileConfig`.
        lossy: acceptance rules that can be asked for and do not keep the target's law; empty in most engines.
        more_drafters: those behind `drafter`, where several draft side by side; `draft_vocabulary` is of the first.
        draft_device: where the drafter runs, if apart from the target; else empty.
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
    lookup: int = 0
    draft_vocabulary: dict[str, int] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()
    more_drafters: tuple[ModelSpec, ...] = ()
    draft_device: str = ""

    @property
    def drafted_by(self) -> str:
        """What drafts, in a few words: the source of a drafter, or the kind of one without weights."""
        if self.drafter is None:
            return self.drafter_kind
        return f"ngram, else {self.drafter.source}" if self.lookup else self.drafter.source

    @property
    def lends_weights(self) -> bool:
        """Whether its programs are lent `weights.safetensors`; a plan of TensorRT has a copy of its own."""
        return self.backend != "tensorrt"

    @property
    def prefills(self) -> list[str]:
        """Names of the programs that fill caches from a text."""
        return [name for name in self.programs if name.startswith("prefill_")]

    def on(self, drafts: bool) -> list[ProgramSpec]:
        """The programs on one of two devices: that which drafts, or the target's; all, where there is one device."""
        return [spec for spec in self.programs.values() if not self.draft_device or spec.drafts == drafts]

    def read_by(self, drafts: bool) -> set[str]:
        """Names of the tensors that these programs read."""
        return {name for spec in self.on(drafts) for name in spec.inputs}

    def weights_of(self, drafts: bool) -> set[str]:
        """Names of the weights that these programs read."""
        return {name for spec in self.on(drafts) for name in spec.weights}

    @property
    def drafter_prefills(self) -> list[str]:
        """Names of the programs that fill the caches of the drafters that have any, one for each."""
        return sorted(name for name in self.programs if name.startswith("prefill_drafter"))

    def to_json(self) -> str:
        """The manifest as text, stable for equal content, with its own checksum."""
        return json.dumps(with_checksum(dataclasses.asdict(self)), indent=1)

    @classmethod
    def read(cls, engine: Path) -> EngineManifest:
        """Read and check `engine/manifest.json`.

        Raises:
            EngineFormatError: no folder, no manifest, or one that is truncated, has other fields, or was changed.
            EngineVersionError: written in another format version.
        """
        path = engine / MANIFEST_NAME
        if os.path.isfile(engine):
            raise EngineFormatError(f"{engine}: is a file; give the folder that specc compile wrote")
        if not os.path.isdir(engine):  # false for too long a name as well
            raise EngineFormatError(
                f"{engine}: no such engine folder; make one with specc compile TARGET DRAFTER -o {engine}"
            )
        if not path.is_file():
            raise EngineFormatError(
                f"{engine}: holds no {MANIFEST_NAME}, so it is not an engine; give the folder that specc compile wrote"
            )
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as e:
            raise EngineFormatError(f"{path}: not readable as JSON ({e}); compile the engine again") from e
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise EngineVersionError(
                f"{path}: format {found!r}, this specc reads format {FORMAT}; compile the engine again with this specc"
            )
        checksum = raw.pop(CHECKSUM, None)
        try:
            manifest: EngineManifest = _build(cls, raw, "manifest")
            _check(manifest)
        except (ValueError, ConfigError) as e:
            raise EngineFormatError(f"{path}: fields do not fit format {FORMAT} ({e}); compile the engine again") from e
        if checksum != with_checksum(raw)[CHECKSUM]:
            raise EngineFormatError(
                f"{path}: was changed after the engine was written (its own {CHECKSUM} is of other content); "
                "compile the engine again"
            )
        return manifest


def with_checksum(raw: dict[str, Any]) -> dict[str, Any]:
    """A manifest's plain content, with its checksum: what was edited by hand describes programs that there are not."""
    return {**raw, CHECKSUM: hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()}


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` (plain JSON) as a `kind`: a dataclass, tuple, dictionary, union, `Any` or a plain type.

    Raises:
        ValueError: it is of another kind; says where.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        return None if value is None else _build(inner[0], value, where)
    plain = {tuple: list, dict: dict}.get(origin, dict if dataclasses.is_dataclass(kind) else kind)
    if type(value) is not plain:
        raise ValueError(f"{where}: expected {plain.__name__}, found {str(value)[:40]!r}")
    if origin is tuple:
        return tuple(_build(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        return {key: _build(inner[1], item, f"{where}.{key}") for key, item in value.items()}
    if not dataclasses.is_dataclass(kind):
        return value
    hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
    for key in value.keys() ^ hints.keys():
        field = next((f for f in fields if f.name == key), None)
        if field is None or (field.default is field.default_factory is dataclasses.MISSING):
            raise ValueError(f"{where}: {key} is {'missing' if field else 'not known'}")
    make: Any = kind
    return make(**{key: _build(hints[key], item, f"{where}.{key}") for key, item in value.items()})


def _check(manifest: EngineManifest) -> None:
    """What the runtime takes for granted.

    Raises:
        ValueError: the fields do not describe an engine.
    """
    for name in ("batch", "context", "slots", "chunk", "vocab_size"):
        if getattr(manifest, name) < 1:
            raise ValueError(f"{name}: expected at least 1, found {getattr(manifest, name)}")
    if not 0 <= manifest.lookup <= MOST_LOOKUP:
        raise ValueError(f"lookup: expected 0..{MOST_LOOKUP}, found {manifest.lookup}")
    if manifest.drafter_kind not in KINDS:
        raise ValueError(f"drafter_kind: expected one of {', '.join(KINDS)}, found {manifest.drafter_kind!r}")
    needed = {"step", "prefill_target"} | ({"prefill_drafter"} if manifest.drafter_kind in WITH_CACHE else set())
    for name in sorted(needed - manifest.programs.keys()):
        raise ValueError(f"programs: {name} is missing")
    _check_tree("tree_paths", manifest.tree_paths, least=2)
    for name, program in manifest.programs.items():
        if program.batch not in (1, manifest.batch):
            raise ValueError(f"programs.{name}: works on {program.batch} rows of an engine of {manifest.batch}")
        if program.draft and not (program.draft in manifest.programs and manifest.draft_device):
            raise ValueError(f"programs.{name}: its draft {program.draft} is missing, or no draft_device is named")
        if program.rule:
            _check_tree(f"programs.{name}.tree_paths", program.tree_paths, least=1)
    names = [tensor.name for tensor in manifest.tensors]
    if len(set(names)) < len(names) or not {"bucket", "history"} <= set(names):
        raise ValueError("tensors: a name is missing or stands twice")
    if any(size < 0 for tensor in manifest.tensors for size in tensor.shape):
        raise ValueError("tensors: a size is below 0")


def _check_tree(where: str, paths: tuple[tuple[int, ...], ...], least: int) -> None:
    if len(paths) < least or (len(paths) > 1 and DraftTree.from_paths(paths[1:]).paths != paths) or paths[0] != ():
        raise ValueError(f"{where}: not a tree in order")
