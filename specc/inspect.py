"""`specc inspect`: what is in an engine, from its manifest and file sizes; no program is loaded."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from .console import SteadyConsole, new_table
from .draft_vocabulary import describe
from .drafter import LEAST, READS_FEATURES, SELF
from .errors import EngineFormatError
from .manifest import MANIFEST_NAME, EngineManifest, ModelSpec, TensorSpec
from .prediction import by_match, predictions, predictions_by_match
from .runtime.weights import weight_bytes
from .tree import DraftTree, DynamicTree

_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "bool": 1}


def inspect(engine: str, as_json: bool = False) -> None:
    """Print what is in an engine: the manifest as JSON, or tables.

    Raises:
        EngineFormatError: there is no engine, or its manifest cannot be read.
        EngineVersionError: written in another format version.
    """
    folder = Path(engine)
    manifest = EngineManifest.read(folder)
    if as_json:
        sys.stdout.write((folder / MANIFEST_NAME).read_text(encoding="utf-8").rstrip() + "\n")
        return
    console = SteadyConsole()
    try:
        parts = [_summary(folder, manifest), _state(manifest), _programs(folder, manifest), _passes(manifest)]
        if "seconds" in manifest.cost:
            parts.append(_costs(manifest))
    except (LookupError, TypeError, ValueError, AttributeError) as e:  # reports that only this command reads
        raise EngineFormatError(
            f"{folder / MANIFEST_NAME}: its costs or passes cannot be shown ({e!r}); compile the engine again"
        ) from e
    for part in parts:
        console.print(part)
        console.print()
    console.print(f"draft tree: {_tree_line(manifest)}")
    if _dynamic(manifest) is None:
        console.print(DraftTree(manifest.tree_paths).draw())


def state_bytes(tensors: Iterable[TensorSpec]) -> dict[str, tuple[int, int]]:
    """Number of tensors and their bytes by kind; call tensors are the caller's and not counted."""
    kinds: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        if tensor.role == "call":
            continue
        count, size = kinds.get(_kind(tensor), (0, 0))
        kinds[_kind(tensor)] = (count + 1, size + math.prod(tensor.shape) * _BYTES.get(tensor.dtype, 4))
    return kinds


def _kind(tensor: TensorSpec) -> str:
    if tensor.role != "cache":
        return {"bucket": "bucket", "draft": "window and n-grams"}.get(tensor.role, "lengths and parameters")
    for model in ("target", "drafter"):
        if tensor.name.startswith(model):
            return f"{model} caches"
    return tensor.name


def _summary(folder: Path, manifest: EngineManifest) -> Table:
    table = _rows(str(folder))
    table.add_row("target", _model(manifest.target))
    made_of = f"layers of the target, {manifest.config['drafter']}: " if manifest.drafter_kind == SELF else ""
    table.add_row("drafter", made_of + _model(manifest.drafter) if manifest.drafter else manifest.drafter_kind)
    if manifest.drafter and manifest.drafter_kind in READS_FEATURES:
        layers = ", ".join(map(str, manifest.drafter.taps))
        reads = f"what enters the layers {layers}" if layers else "what enters the head"
        table.add_row("kind", f"{manifest.drafter_kind}, reads {reads} of the target")
    if manifest.lookup and manifest.drafter:
        table.add_row("lookup", f"goes before the drafter where {LEAST} tokens or more occurred before in the text")
    for place, drafter in enumerate(manifest.more_drafters, 2):
        table.add_row(f"drafter {place}", _model(drafter))
    if manifest.lossy:
        rules = ", ".join(manifest.lossy)
        table.add_row("LOSSY acceptance", f"{rules}: texts that ask for it do not follow the law of the target")
    drafts = f" (the drafter on {manifest.draft_device})" if manifest.draft_device else ""
    table.add_row("dtype, device", f"{manifest.dtype}, {manifest.device}{drafts}, back end {manifest.backend}")
    if "name" in (made_on := manifest.processor):
        flags = " ".join(made_on.get("flags", ()))
        table.add_row("processor", f"{made_on['name']} ({made_on.get('isa', '')}; {flags})")
    for device, gpu in made_on.get("gpus", {}).items():
        table.add_row(device, " ".join(gpu.values()))
    if "tensorrt" in made_on:
        table.add_row("TensorRT", made_on["tensorrt"])
    table.add_row(
        "context", f"{manifest.context} tokens, {manifest.slots} slots, prefill in chunks of {manifest.chunk}"
    )
    table.add_row("vocabulary", f"{manifest.vocab_size} ids, {manifest.padded_vocab_size} rows; ends: {_ids(manifest)}")
    if told := describe(manifest.draft_vocabulary):
        table.add_row("draft vocabulary", told)
    weights = weight_bytes(folder)
    table.add_row("weights", f"{len(weights)} tensors, {_size(sum(size for _, size in weights.values()))}")
    if quant := manifest.config.get("quant"):
        table.add_row("quantised", f"products of all models in {quant}: the text is that of a model with such weights")
    if quant := manifest.config.get("draft", {}).get("draft_quant"):
        own = sum(size for name, (_, size) in weights.items() if name.startswith("drafter"))
        table.add_row("drafter's weights", f"products in {quant}; {_size(own)} in all")
    for name, found in predictions(manifest).items():
        rates = ", ".join(f"{rate:.0%}" for rate in found.acceptance)
        table.add_row(f"acceptance of {name}", f"{rates} by level, on {manifest.cost['prompts']} prompts")
        gain = f"{found.tokens:.2f} tokens a step for {found.cost:.2f} plain steps: {found.speedup:.2f}x"
        table.add_row(f"prediction for {name}", gain)
    for name, parts in predictions_by_match(manifest).items():
        table.add_row(f"tokens of {name}", f"{by_match(parts)}, by how many of the last tokens occurred before")
    table.add_row("self-check", _self_check(manifest.self_check))
    versions = f"specc {manifest.specc_version}, torch {manifest.torch_version}, format {manifest.format}"
    table.add_row("made by", f"{versions}, key {manifest.engine_key[:12]}")
    return table


def _state(manifest: EngineManifest) -> Table:
    table = new_table("state", "kind", "tensors", "bytes")
    kinds = state_bytes(manifest.tensors)
    for kind, (count, size) in kinds.items():
        table.add_row(kind, str(count), _size(size))
    table.add_row("all", str(sum(n for n, _ in kinds.values())), _size(sum(size for _, size in kinds.values())))
    return table


def _programs(folder: Path, manifest: EngineManifest) -> Table:
    table = new_table("programs", "program", "file", "inputs", "outputs", "weights")
    for name, spec in manifest.programs.items():
        path = folder / spec.file
        size = _size(path.stat().st_size) if path.is_file() else "missing"
        table.add_row(name, size, str(len(spec.inputs)), str(len(spec.outputs)), str(len(spec.weights)))
    return table


def _passes(manifest: EngineManifest) -> Table:
    """One line a pass, one column a program: rewrites; seconds and declined sites are summed over the programs."""
    reports = {name: {p["name"]: p for p in spec.passes} for name, spec in manifest.programs.items()}
    declines = any(p["declined"] for by_name in reports.values() for p in by_name.values())
    columns = [name.replace("_", " ") for name in reports] + ["seconds"] + ["declined"] * declines
    table = new_table("passes: rewrites in each program", "pass", *columns)
    for stem in _in_order(reports):
        done = [by_name.get(stem) for by_name in reports.values()]
        seconds = sum(p["seconds"] for p in done if p)
        declined = [str(sum(p["declined"] for p in done if p))] * declines
        table.add_row(stem, *(str(p["rewrites"]) if p else "-" for p in done), f"{seconds:.2f}", *declined)
    table.add_section()
    nodes = [str(spec.passes[-1]["nodes"]) if spec.passes else "-" for spec in manifest.programs.values()]
    total = sum(p["seconds"] for by_name in reports.values() for p in by_name.values())
    table.add_row("nodes at the end", *nodes, f"{total:.2f}")
    return table


def _costs(manifest: EngineManifest) -> Table:
    """Milliseconds per call at each length that was timed, and calls in plain steps of as many rows."""
    cost, plain = manifest.cost, {}
    lengths = [f"ms at {n} tokens" for n in cost["tokens"]]
    table = new_table("cost of a call", "program", *lengths, "in plain steps")
    for name, spec in manifest.programs.items():
        if spec.rule == "greedy" and len(spec.tree_paths) == 1 and name in cost["seconds"]:
            plain[spec.batch] = cost["seconds"][name][0]
    for name, seconds in cost["seconds"].items():
        base = plain.get(manifest.programs[name].batch)
        table.add_row(name, *(f"{1e3 * s:.2f}" for s in seconds), f"{seconds[0] / base:.2f}" if base else "-")
    return table


def _in_order(reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Every pass once: a pass that only some programs have stands where its own list has it."""
    order: list[str] = []
    for by_name in sorted(reports.values(), key=len, reverse=True):
        place = 0
        for stem in by_name:
            if stem in order:
                place = order.index(stem) + 1
            else:
                order.insert(place, stem)
                place += 1
    return order


def _dynamic(manifest: EngineManifest) -> DynamicTree | None:
    """The tree that each step grows; None where the engine has one for all."""
    asked = manifest.config.get("draft", {}).get("tree")
    return DynamicTree.parse(asked) if isinstance(asked, str) and asked.startswith("dynamic") else None


def _tree_line(manifest: EngineManifest) -> str:
    if dynamic := _dynamic(manifest):
        grown = f"{len(dynamic) - 1} nodes of at most {dynamic.depth} levels, the likeliest of what was grown"
        return f"{dynamic}: every step drafts {grown} from {dynamic.top_k} children a node"
    tree = DraftTree(manifest.tree_paths)
    return f"{'chain' if tree.is_chain else 'tree'} of {len(tree) - 1} drafted nodes, depth {tree.depth}"


def _model(model: ModelSpec) -> str:
    sizes = f"{model.parameters:,} parameters, {model.layers} layers, {model.max_positions} positions"
    return f"{model.source}: {model.architecture}, {sizes}, digest {model.digest[:12]}"


def _ids(manifest: EngineManifest) -> str:
    return ", ".join(map(str, manifest.eos_token_ids)) or "none"


def _self_check(check: Mapping[str, Any]) -> str:
    if not check:
        return "none was made"
    total, same = len(check.get("tokens", ())), check.get("equal_with_speculation", 0)
    equal = "equal with and without speculation" if same >= total else f"equal up to token {same} with speculation"
    return f"{total} greedy tokens after a prompt of {len(check.get('prompt', ()))}, {equal}"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} B"


def _rows(title: str) -> Table:
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
