"""Compile: models in, engine out. The one place that sees every room."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import __version__, environment
from .config import CompileConfig, DraftConfig
from .engine_writer import (
    checksums,
    program_spec,
    save_manifest,
    save_weights,
    slots_for,
    tensor_specs,
    writing,
)
from .errors import ConfigError, EngineError
from .lower import aotinductor
from .lower.cache import ProgramCache, cache_folder, program_key
from .lower.forms import FormTable
from .lower.workers import Workers
from .manifest import EngineManifest, ModelSpec
from .passes import run
from .plan import plan_programs
from .program import Model, Sizes, WeightStore
from .progress import Report

DEFAULT_CONTEXT = 2048
WORKERS = 2


def compile(
    target: str,
    drafter: str,
    output: str | Path,
    *,
    quiet: bool = True,
    dump: str | Path | None = None,
    without: tuple[str, ...] = (),
    **options: Any,
) -> Path:
    """Compile a target and a drafter into an engine.

    Args:
        target, drafter: hub id, folder or GGUF file; the drafter may be `ngram`.
        output: folder of the engine.
        quiet: print nothing.
        dump: folder for the graphs before and after every pass.
        without: stems of passes to leave out.
        options: fields of `CompileConfig` and `DraftConfig` (`draft_length=3`, `tree="4,2,1"`, `dtype="bfloat16"`, ...).

    Returns:
        The engine's folder.

    Raises:
        ConfigError: an option is unknown, out of range, or contradicts another.
        CaptureError, TokenizerError: the models cannot be compiled together; the message says why.
        BackendError: the back end is missing or cannot take a program.
    """
    names = {f.name for f in dataclasses.fields(DraftConfig)}
    known = {f.name for f in dataclasses.fields(CompileConfig)} - {"draft"} | names
    for name in options:
        if name not in known:
            raise ConfigError(f"compile() has no option {name!r}; the options are {', '.join(sorted(known))}")
    draft = DraftConfig(**{k: v for k, v in options.items() if k in names})
    rest = {k: v for k, v in options.items() if k not in names}
    config = CompileConfig(target=str(target), drafter=str(drafter), output=str(output), draft=draft, **rest)
    return compile_engine(config, Report(quiet), dump=Path(dump) if dump else None, without=without)


def compile_engine(
    config: CompileConfig, report: Report, *, dump: Path | None = None, without: tuple[str, ...] = ()
) -> Path:
    """The whole way from `config` to a saved engine; see `compile`."""
    output = Path(config.output)
    environment.check_output(output)
    environment.check_device(config.device)
    if config.backend == "inductor":
        environment.check_compiler()
    from . import capture  # transformers: only where it is needed

    neural = config.drafter != "ngram"
    digests = [
        capture.digest_source(source) for source in ([config.target, config.drafter] if neural else [config.target])
    ]
    key = engine_key(config, digests, without)
    if dump is None and _is_current(output, key):
        report.say(f"{output} is up to date")
        return output
    with report.stage("load the models"):
        loaded = {"target": capture.load_model(config.target, role="target", dtype=config.dtype)}
        if neural:
            loaded["drafter"] = capture.load_model(config.drafter, role="drafter", dtype=config.dtype)
            capture.compare_tokenizers(loaded["target"], loaded["drafter"])
    context = choose_context(config, {name: one.max_positions for name, one in loaded.items()})
    size = sum(p.numel() * p.element_size() for one in loaded.values() for p in one.model.parameters())
    environment.check_output(output, int(1.2 * size))
    environment.check_memory(int(3.0 * size))
    with report.stage("capture"):
        models = {name: capture.capture(one, name=name) for name, one in loaded.items()}
    with report.stage("prove the capture"):
        for name, one in loaded.items():
            capture.prove(one, models[name])
    with writing(output) as folder:
        manifest = _build(config, report, models, loaded, context, folder, key, dump, without)
        capture.save_text_files(loaded["target"], folder)
        manifest = dataclasses.replace(manifest, files=checksums(folder))
        save_manifest(folder, manifest)
        with report.stage("check and measure"):
            from .measure import measured

            save_manifest(folder, measured(folder, manifest, loaded["target"].tokenizer))
    report.say(f"engine {output}")
    return output


def _build(
    config: CompileConfig,
    report: Report,
    models: dict[str, Model],
    loaded: dict[str, Any],
    context: int,
    folder: Path,
    key: str,
    dump: Path | None,
    without: tuple[str, ...],
) -> EngineManifest:
    weights, sizes = WeightStore(), Sizes(1, slots_for(context, config.draft.shape().depth, config.chunk), config.chunk)
    for model in models.values():
        for name, tensor in model.weights.items():
            weights.add(name, tensor)
    kind = "model" if "drafter" in models else "ngram"
    plans = list(plan_programs(config, kind))
    machine = environment.machine()
    forms = FormTable(cache_folder() / "forms.json", machine)
    programs, specs = [], {}
    cache = ProgramCache(cache_folder() / "programs" if config.backend == "inductor" else None)
    options = aotinductor.OPTIONS if config.backend == "inductor" else {}
    lower = aotinductor.lower if config.backend == "inductor" else aotinductor.lower
    with report.bar("rewrite and lower the programs", len(plans)) as bar:
        workers = Workers(WORKERS, lower, lambda name: bar.advance(bar.task_ids[0]))
        pending: list[tuple[str, Path]] = []
        try:
            for plan in plans:
                program = plan.program(models, weights, sizes, config.device)
                skipped = [
                    stem for stem in without if stem in {p.stem() for p in plan.passes(drafter=kind, choose=None)}
                ]
                choose = forms.choose if config.device == "cpu" and config.backend == "inductor" else partial(_as_is)
                reports = run(program, plan.passes(drafter=kind, choose=choose), dump_dir=dump, without=skipped)
                path = folder / "programs" / f"{plan.name}.pt2"
                program_id = program_key(program, options, machine)
                specs[plan.name] = program_spec(
                    program, f"programs/{path.name}", program_id, [dataclasses.asdict(r) for r in reports]
                )
                programs.append(program)
                if cache.fetch(program_id, path):
                    bar.advance(bar.task_ids[0])
                else:
                    pending.append((program_id, path))
                    workers.submit(program, path)
            workers.finish()
        except BaseException:
            workers.stop()
            raise
        for program_id, path in pending:
            cache.keep(program_id, path)
    with report.stage("save the weights"):
        save_weights(folder, weights, programs)
    target = loaded["target"]
    return EngineManifest(
        engine_key=key,
        specc_version=__version__,
        torch_version=torch.__version__,
        backend=config.backend,
        device=config.device,
        dtype=config.dtype,
        processor=environment.processor() if config.device == "cpu" and config.backend == "inductor" else {},
        target=_model_spec(target, models["target"]),
        drafter=_model_spec(loaded["drafter"], models["drafter"]) if "drafter" in models else None,
        drafter_kind=kind,
        batch=1,
        context=context,
        slots=sizes.slots,
        chunk=config.chunk,
        vocab_size=target.vocab_size,
        padded_vocab_size=target.model.get_output_embeddings().weight.shape[0],
        eos_token_ids=target.eos_token_ids,
        tree_paths=config.draft.shape().paths,
        tensors=tensor_specs(programs),
        programs=specs,
        config=config.to_json(),
    )


def _as_is(out: int, size: int, rows: int, dtype: torch.dtype) -> str:
    return "linear"


def _model_spec(loaded: Any, model: Model) -> ModelSpec:
    return ModelSpec(
        source=loaded.source,
        architecture=loaded.architecture,
        digest=loaded.digest,
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        layers=len(model.graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)),
        max_positions=model.max_positions,
    )


def choose_context(config: CompileConfig, limits: dict[str, int]) -> int:
    """Tokens of context: what was asked for, else what every model can, at most 2048.

    Raises:
        ConfigError: more was asked than a model has positions.
    """
    for name, limit in limits.items():
        if config.context is not None and config.context > limit:
            raise ConfigError(
                f"--context {config.context} is more than the {name}'s {limit} positions; use --context {limit}"
            )
    return config.context or min(DEFAULT_CONTEXT, *limits.values())


def engine_key(config: CompileConfig, digests: list[str], without: tuple[str, ...] = ()) -> str:
    """SHA-256 over the inputs and everything that decides what is made of them: choices, machine, and our own code."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    import specc.passes

    for path in sorted(Path(specc.passes.__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    choices = {k: v for k, v in config.to_json().items() if k not in ("output", "target", "drafter")}
    parts = [json.dumps(choices, sort_keys=True), *digests, environment.machine(), code.hexdigest(), *without]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_current(output: Path, key: str) -> bool:
    try:
        manifest = EngineManifest.read(output)
        return manifest.engine_key == key and checksums(output) == manifest.files
    except EngineError:
        return False
