"""`specc export`: an engine's graphs in another format, made from what the engine keeps; no model is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

from .engine_writer import GRAPHS
from .environment import check_folder
from .errors import ConfigError, EngineFormatError
from .lower.graphs import load_graph, weight_layouts
from .lower.onnx import OPSET, OPSETS, READERS, export_onnx
from .manifest import WEIGHTS_NAME, EngineManifest
from .passes import bound_passes, run
from .progress import Report
from .runtime.checks import check_files
from .runtime.programs import BY_DRAFT


def export(
    engine: str | Path,
    folder: str | Path,
    report: Report | None = None,
    *,
    reader: str = READERS[0],
    opset: int = OPSET,
) -> list[Path]:
    """Write the step and plain programs of an engine as ONNX models that share one weights file.

    Args:
        engine: the engine's folder.
        folder: where the models go; made if it is not there.
        reader: `onnxruntime`, or `tensorrt`, whose models take the noise of `coupled` sampling as an input `noise_0`
        opset: 18, or 24 for caches written by `TensorScatter`.

    Returns:
        The `.onnx` files, caches as inputs and outputs (`specc.lower.onnx.export_onnx` has the names).

    Raises:
        EngineFormatError: no engine, or one without graphs.
        ConfigError: the folder cannot be written, `reader` or `opset` is unknown, or TensorRT could not sample by the
            engine's rules.
        BackendError: onnx is not installed, or an op has no ONNX form.
    """
    if reader not in READERS:
        raise ConfigError(f"--for {reader!r} is not one of {', '.join(READERS)}")
    if opset not in OPSETS:
        raise ConfigError(f"--opset {opset!r} is not one of {', '.join(map(str, OPSETS))}")
    engine, folder, report = Path(engine), Path(folder), report or Report()
    noise = "input" if reader == "tensorrt" else "ops"
    manifest = EngineManifest.read(engine)
    if manifest.config.get("quant") and reader == "tensorrt":
        raise ConfigError(f"--for tensorrt: {engine} holds weights in ONNX Runtime's own form; compile without --quant")
    if reader == "tensorrt" and (rules := {spec.rule for spec in manifest.programs.values()} & {*BY_DRAFT}):
        raise ConfigError(
            f"--for tensorrt: noise is an input there, and {min(rules)} needs it for positions that the step decides; "
            "compile the engine without --acceptance, for coupled alone"
        )
    weights = engine / WEIGHTS_NAME
    check_files(engine, manifest)
    check_folder("--onnx", folder)
    if others := sorted(p.name for p in folder.iterdir() if p.suffix != ".onnx" and p.name != WEIGHTS_NAME):
        raise ConfigError(
            f"--onnx {folder}: holds other files ({others[0]}), whose weights would be lost; give another"
        )
    if (folder / WEIGHTS_NAME).exists() and not any(folder.glob("*.onnx")):
        raise ConfigError(f"--onnx {folder}: holds weights that no export wrote; give another folder")
    written = []
    try:
        (folder / WEIGHTS_NAME).unlink(missing_ok=True)
        shutil.copyfile(weights, folder / WEIGHTS_NAME)  # a copy: onnx refuses links
        layouts = weight_layouts(weights)
        for name in manifest.programs:
            if name.startswith("prefill"):
                continue
            graph = engine / GRAPHS / f"{name}.json"
            if not graph.is_file():
                raise EngineFormatError(f"{graph}: not there; compile the engine again")
            with report.stage(f"export {name}"):
                program = load_graph(graph, layouts)
                run(program, bound_passes(form="functional", noise=noise))
                path = folder / f"{name}.onnx"
                export_onnx(program, path, opset=opset, weights=folder / WEIGHTS_NAME, reader=reader)
            written.append(folder / f"{name}.onnx")
    except OSError as e:
        raise ConfigError(f"{folder}: cannot write there ({e.strerror or e}); give --onnx another folder") from e
    return written
