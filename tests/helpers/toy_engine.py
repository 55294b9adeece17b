"""An engine folder with real programs that do nothing of use: bigram models, saved for either back end."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from helpers.fake_engine import VOCAB, toy_manifest
from safetensors.torch import save_file
from torch import Tensor

from specc.graph_text import write_node
from specc.lower.graphs import write_lines
from specc.manifest import MANIFEST_NAME, WEIGHTS_NAME, EngineManifest

DEPTH, CONTEXT, CHUNK = 3, 60, 8
UNUSED = ("repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_length", "min_length", "forced")


def toy_weights(extra: int = 0) -> dict[str, Tensor]:
    """Logits of the next token by the last two, and a drafter that knows the last one; `extra` more numbers to read."""
    generator = torch.Generator().manual_seed(3)
    last, before = (torch.randn(VOCAB, VOCAB, generator=generator) for _ in range(2))
    weights = {"target.last": last, "target.before": before, "drafter.last": last + 0.0}
    return {**weights, "target.extra": torch.zeros(extra)} if extra else weights


def toy_continuation(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy text of the bigram target."""
    weights, known = toy_weights(), list(prompt)
    for _ in range(count):
        before = known[-2] if len(known) > 1 else 0
        known.append(int((weights["target.last"][known[-1]] + weights["target.before"][before]).argmax()))
    return known[len(prompt) :]


def toy_engine(folder: Path, backend: str = "eager", extra: int = 0) -> Path:
    """Write the engine; `inductor` compiles two small packages."""
    weights = toy_weights(extra)
    names = ["step", "prefill_target"] + (["plain"] if backend == "eager" else [])
    base = toy_manifest(depth=DEPTH, context=CONTEXT, chunk=CHUNK, drafter_kind="ngram", without=UNUSED)
    suffix = "json" if backend == "eager" else "pt2"
    programs = {
        n: dataclasses.replace(base.programs[n], file=f"programs/{n}.{suffix}", weights=_reads(n, weights))
        for n in names
    }
    manifest = dataclasses.replace(base, backend=backend, programs=programs)
    (folder / "programs").mkdir(parents=True)
    save_file(weights, folder / WEIGHTS_NAME)
    for name in names:
        _save(manifest, name, weights, folder / manifest.programs[name].file)
    seal(folder, manifest)
    return folder


def seal(folder: Path, manifest: EngineManifest, **changes: Any) -> None:
    """Write the manifest with the checksums of what is there."""
    paths = [p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_NAME]
    files = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(paths)}
    changed = dataclasses.replace(manifest, **{"files": files, **changes})
    (folder / MANIFEST_NAME).write_text(changed.to_json())


def _reads(name: str, weights: Mapping[str, Tensor]) -> tuple[str, ...]:
    return () if name.startswith("prefill") else tuple(weights)


class _Program(torch.nn.Module):
    """A program whose arguments are its inputs and then its weights, or whose weights are its own."""

    def __init__(
        self, body: Callable[..., tuple[Tensor, ...]], names: Sequence[str], own: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.body, self.names, self.own = body, names, list(own)
        for owned, tensor in own.items():
            owner = self
            *parents, leaf = owned.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, torch.nn.Module())
                owner = getattr(owner, parent)
            owner.register_buffer(leaf, tensor)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        own = {name: self.get_buffer(name) for name in self.own}
        return self.body({**dict(zip(self.names, arguments, strict=True)), **own})


def _save(manifest: EngineManifest, name: str, weights: Mapping[str, Tensor], path: Path) -> None:
    spec, shapes = manifest.programs[name], {t.name: t for t in manifest.tensors}
    native = manifest.backend == "inductor"
    examples = [torch.zeros(shapes[n].shape, dtype=getattr(torch, shapes[n].dtype)) for n in spec.inputs]
    examples = [e[:64] if n == "bucket" else e for n, e in zip(spec.inputs, examples, strict=True)]
    read = {n: weights[n] for n in spec.weights}
    names = spec.inputs if native else (*spec.inputs, *read)
    slots = torch.export.Dim("slots", min=2, max=manifest.slots - 1)
    dynamic = tuple({0: slots} if n == "bucket" else None for n in names)
    body = _prefill if name.startswith("prefill") else _step if name == "step" else _plain
    module = _Program(body, names, read if native else {})
    arguments = tuple(examples) if native else (*examples, *read.values())
    with torch.no_grad():
        exported = torch.export.export(module, arguments, dynamic_shapes={"arguments": dynamic})
    if native:
        options = {"aot_inductor.package_constants_in_so": False, "cpp.dynamic_threads": True}
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path), inductor_configs=options)
    else:
        called = [*spec.inputs, *read]
        nodes = [write_node(node) for node in exported.graph.nodes]
        for place, node in enumerate(nodes[: len(called)]):
            kind = "input" if place < len(spec.inputs) else "weight"
            nodes[place] = [kind, node[1], called[place], *node[3:]]
        results = ["results", [node.name for node in exported.graph.output_node().args[0]]]
        write_lines(path, {"name": name}, [*nodes[:-1], results])


def _prefill(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    for cache in (t["target_k_0"], t["target_v_0"]):
        _write(cache, t["start"], t["tokens"])
    return (t["start"] + t["tokens"].shape[1] + 0 * t["bucket"].shape[0],)


def _plain(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return _step(t, 0)


def _step(t: Mapping[str, Tensor], depth: int = DEPTH) -> tuple[Tensor, ...]:
    """Draft, verify, accept, commit; a slot of the cache holds its token + 1."""
    length, rows, levels = t["target_length"], torch.arange(depth + 1), torch.arange(1, depth + 1)
    token = t["history"].gather(1, length[:, None])[:, 0]
    seen = t["target_k_0"][:, 0, : t["bucket"].shape[0], 0]
    before = seen.gather(1, (length - 1).clamp(min=0)[:, None])[:, 0].long() - 1
    before = torch.where(length > 0, before, 0)
    tokens = [token]
    for _ in range(depth):
        tokens.append(t["drafter.last"][tokens[-1]].argmax(-1))
    extra = t["target.extra"].sum() if "target.extra" in t else 0.0
    pairs = zip([before, *tokens[:-1]], tokens, strict=True)
    logits = torch.stack([t["target.last"][b] + t["target.before"][a] + extra for a, b in pairs], 1)
    processed = logits + t["bias"][:, None]
    block = processed.argmax(-1)
    offered = t["draft_limit"].clamp(max=depth) if depth else torch.zeros_like(length)
    ok = (torch.stack(tokens, 1)[:, 1:] == block[:, :-1]) & (levels <= offered[:, None])
    accepted = (ok.long().cumsum(-1) == levels).sum(-1)
    ends = (block[:, :, None] == t["eos"][:, None, :]).sum(-1) > 0
    ends = ends & (rows <= accepted[:, None])
    first = torch.where(ends, rows, depth + 1).amin(-1)
    count = torch.minimum(torch.minimum(accepted, first) + 1, t["limit"] - length - 1)
    count = torch.where(t["active"], count, 0)
    done = (length + 1 + count >= t["limit"]) | (first < count)
    kept = torch.cat([token[:, None], block[:, :-1]], 1)
    for cache in (t["target_k_0"], t["target_v_0"]):
        _write(cache, length, kept)
    slots = length[:, None] + 1 + rows
    t["history"].index_put_((torch.arange(length.shape[0])[:, None], slots), block)
    report = torch.cat([block, torch.stack([count, accepted, offered], 1)], 1)
    path = rows.expand_as(block) + 0
    return report, t["active"] & ~done, length + count, path, logits, processed


def _write(cache: Tensor, start: Tensor, tokens: Tensor) -> None:
    slots = start[:, None, None] + torch.arange(tokens.shape[1])
    row, head = torch.arange(cache.shape[0])[:, None, None], torch.zeros(1, 1, 1, dtype=torch.int64)
    cache.index_put_((row, head, slots), (tokens[:, None, :, None] + 1).to(cache.dtype))
