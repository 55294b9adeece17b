"""Write an engine: aside first, renamed when it is whole, so that a killed compile leaves the old one."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from .errors import ConfigError
from .manifest import MANIFEST_NAME, WEIGHTS_NAME, EngineManifest, ProgramSpec, TensorSpec
from .passes.inputs import role
from .plan import ProgramPlan
from .program import Program, WeightStore

GRAPHS = "graphs"
_SLACK = 1  # the bucket may never be the whole cache: that size is guarded out at export


def slots_for(context: int, depth: int, chunk: int, multiple: int = 1) -> int:
    """S: the user's context, and room for the padding of a block or of a prefill chunk; of a multiple, the next one."""
    return -(-(context + max(depth + 1, chunk) + _SLACK) // multiple) * multiple


@contextmanager
def writing(output: Path) -> Iterator[Path]:
    """A folder beside `output` to write into; it takes `output`'s place if all goes well, else it is removed.

    Raises:
        ConfigError: the disk is full or the place cannot be written.
    """
    output = output.resolve()
    aside = output.with_name(f".{output.name}.partial.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        sweep(output)
        (aside / "programs").mkdir(parents=True)
        (aside / GRAPHS).mkdir()
        yield aside
        _replace(aside, output)
    except Exception as e:  # libraries tell of a full disk in many ways
        if not isinstance(e, OSError) and not _disk_is_full(aside):
            raise
        reason = (isinstance(e, OSError) and (e.strerror or str(e))) or "No space left on device"
        raise ConfigError(f"{output}: cannot write the engine ({reason}); make room or give -o another place") from e
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def sweep(output: Path) -> None:
    """Remove what killed compiles left beside `output`; one killed between its two renames left the old engine there,
    which goes back."""
    output = output.resolve()
    for left in output.parent.glob(f".{glob.escape(output.name)}.*"):
        kind, _, pid = left.name.removeprefix(f".{output.name}.").partition(".")
        if kind not in ("partial", "old") or not pid.isdecimal() or _alive(pid):
            continue
        if kind == "old" and not output.exists():
            left.rename(output)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _disk_is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < 2**20
    except OSError:
        return False


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def _replace(new: Path, output: Path) -> None:
    old = output.with_name(f".{output.name}.old.{os.getpid()}")
    if output.exists():
        os.rename(output, old)
    try:
        os.rename(new, output)
    except OSError:
        if old.exists():
            os.rename(old, output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def program_spec(
    program: Program, plan: ProgramPlan, file: str, key: str, reports: list[dict[str, object]]
) -> ProgramSpec:
    """How the runtime calls a program."""
    inputs = (str(n.target) for n in program.graph.find_nodes(op="placeholder"))
    return ProgramSpec(
        file=file,
        inputs=tuple(name for name in inputs if role(name) != "noise"),
        outputs=tuple(name for name in program.values if role(name) != "cache"),  # those are written in place
        weights=tuple(program.weight_names()),
        rule="" if plan.drafts else plan.rule,
        tree_paths=plan.tree.paths if plan.tree is not None else (),
        batch=plan.batch,
        draft=plan.draft,
        drafts=plan.drafts,
        passes=tuple(reports),
        key=key,
    )


def tensor_specs(programs: list[Program]) -> tuple[TensorSpec, ...]:
    """Every input of every program, once, in the shape that the runtime allocates."""
    specs: dict[str, TensorSpec] = {}
    for program in programs:
        for node in program.graph.find_nodes(op="placeholder"):
            value, name = node.meta["val"], str(node.target)
            shape = tuple(program.sizes.slots - 1 if isinstance(s, torch.SymInt) else int(s) for s in value.shape)
            if role(name) == "noise":
                continue
            spec = TensorSpec(name=name, shape=shape, dtype=str(value.dtype).removeprefix("torch."), role=role(name))
            known = specs.setdefault(name, spec)
            if spec.role not in ("call", "bucket") and shape[0] > known.shape[0]:
                specs[name] = spec  # programs of one row see a row of the batch's
    return tuple(specs.values())


def save_weights(folder: Path, weights: WeightStore, programs: list[Program]) -> int:
    """Write every weight that some program reads, once; returns the bytes."""
    names = sorted({name for program in programs for name in program.weight_names()})
    tensors = {name: weights[name].contiguous() for name in names}
    try:
        save_file(tensors, str(folder / WEIGHTS_NAME))
        (folder / WEIGHTS_NAME).chmod(_folder_mode(folder))  # safetensors lets only its owner read it
    except SafetensorError as e:  # of a full disk, say
        raise OSError(str(e)) from e
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _folder_mode(folder: Path) -> int:
    """Rights of a file for whoever may use its folder."""
    return folder.stat().st_mode & 0o666


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but the manifest, by path inside the folder."""
    sums = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_NAME):
        with path.open("rb") as file:
            sums[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def save_manifest(folder: Path, manifest: EngineManifest) -> None:
    """Write the manifest and put everything on the disk before the folder is renamed."""
    path = folder / MANIFEST_NAME
    path.write_text(manifest.to_json() + "\n", encoding="utf-8")
    for file in (p for p in folder.rglob("*") if p.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
