"""Compile: models in, engine out. The one place that sees every room."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from . import __version__, environment
from .build import build_programs, check_without
from .choose_draft import choose_draft
from .config import CompileConfig, DraftConfig
from .draft_ids import ids_digest
from .engine_writer import checksums, save_manifest, save_weights, slots_for, sweep, tensor_specs, writing
from .errors import ConfigError
from .keys import engine_key, is_current
from .lower.back_ends import back_end
from .lower.cache import check_cache
from .manifest import LOSSY, MOST_LOOKUP, EngineManifest
from .measure import measured
from .pair import capture_pair, check_room, choose_context, cut_to_heads, digests, load_pair, model_spec, note_positions
from .program import Sizes
from .progress import Report
from .runtime.backends.tensorrt import release
from .samples import sample_texts


def compile(
    target: str | Path,
    drafter: str | Path,
    output: str | Path,
    *,
    quiet: bool = True,
    dump: str | Path | None = None,
    without: tuple[str, ...] = (),
    **options: Any,
) -> Path:
    """Compile a target and a drafter into an engine.

    Args:
        target: hub id, folder or GGUF file.
        drafter: the same, or another form that `specc.drafter` reads, as `ngram`.
        output: folder of the engine.
        quiet: print nothing.
        dump: folder for the graphs before and after every pass.
        without: stems of passes to leave out, for bisection.
        options: fields of `CompileConfig` and `DraftConfig` (`draft_length=3`, `tree="4,2,1"`, `dtype="bfloat16"`).

    Returns:
        The engine's folder.

    Raises:
        ConfigError: an option is unknown, out of range, or contradicts another.
        CaptureError, TokenizerError: the models cannot be compiled, or not together; the message says why.
        BackendError: the back end is missing or cannot take a program.
    """
    if dump is not None and not isinstance(dump, str | os.PathLike):
        raise ConfigError(f"dump: expected a text or a path, found {dump!r}")
    if not isinstance(without, tuple | list) or not all(isinstance(stem, str) for stem in without):
        raise ConfigError(f"without: expected a list of names of passes, found {without!r}")
    config = compile_config(target, drafter, output, **options)
    return compile_engine(config, Report(quiet), dump=Path(dump) if dump else None, without=tuple(without))


def compile_config(target: str | Path, drafter: str | Path, output: str | Path, **options: Any) -> CompileConfig:
    """The choices of one compile; arguments and errors as in `compile`."""
    names = {f.name for f in dataclasses.fields(DraftConfig)}
    known = {f.name for f in dataclasses.fields(CompileConfig)} - {"draft"} | names
    for name in options:
        if name not in known:
            raise ConfigError(f"compile() has no option {name!r}; the options are {', '.join(sorted(known))}")
    for name, place in {"target": target, "drafter": drafter, "output": output}.items():
        if not isinstance(place, str | os.PathLike):
            raise ConfigError(f"{name}: expected a text or a path, found {place!r}")
    draft = DraftConfig(**{k: v for k, v in options.items() if k in names})
    rest = {k: v for k, v in options.items() if k not in names}
    return CompileConfig(target=str(target), drafter=str(drafter), output=str(output), draft=draft, **rest)


def compile_engine(
    config: CompileConfig, report: Report, *, dump: Path | None = None, without: tuple[str, ...] = ()
) -> Path:
    """The whole way from `config` to a saved engine; arguments and errors as in `compile`."""
    output = Path(config.output)
    environment.check_output(output)
    if dump is not None:
        if dump.resolve().is_relative_to(output.resolve()):
            raise ConfigError(f"--dump {dump}: is inside the engine, which is replaced as a whole; give another folder")
        environment.check_folder("--dump", dump)
    environment.check_back_end(config.backend, config.devices())
    if config.backend == "inductor":
        check_cache()
    from . import capture  # brings in transformers: only where it is needed

    check_without(config, without)
    texts = sample_texts(config.draft.prompts)
    inputs = digests(config)
    inputs.append(hashlib.sha256("\n".join(texts).encode()).hexdigest())
    inputs += [ids_digest(str(config.draft.draft_vocab))] if config.draft.draft_vocab is not None else []
    key = engine_key(config, inputs, without)
    sweep(output)
    if dump is None and is_current(output, key):
        report.say(f"{output} is up to date")
        return output
    pair = load_pair(config, texts, report)
    context = choose_context(config, pair)
    note_positions(pair, context, report)
    check_room(config, pair, report)
    config = cut_to_heads(config, pair, report)
    models = capture_pair(pair, config.batch, report)
    asked = config.to_json()
    if config.draft.tune:
        draft, tuned = choose_draft(config, pair, models[1], texts, context, report)
        config = dataclasses.replace(config, draft=draft)
        asked |= {"draft": {**config.to_json()["draft"], "tune": True}, "tuned": tuned}
    trees = config.shapes()
    depth, nodes = max(tree.depth for tree in trees), max(len(tree) for tree in trees)
    slots = slots_for(context, depth, config.chunk, back_end(config.backend).slots)
    sizes = Sizes(config.batch, slots, config.chunk, nodes)
    with writing(output) as folder:
        programs, specs, weights = build_programs(config, models, sizes, folder, report, dump=dump, without=without)
        with report.stage("save"):
            save_weights(folder, weights, programs)
            capture.save_text_files(pair.target, folder)
            manifest = EngineManifest(
                engine_key=key,
                specc_version=__version__,
                torch_version=torch.__version__,
                backend=config.backend,
                device=config.device,
                draft_device=config.draft_device or "",
                dtype=config.dtype,
                processor=_processor(config.backend, config.devices()),
                target=model_spec(pair.target, models[1]["target"]),
                drafter=model_spec(pair.drafter, models[1]["drafter"]) if pair.drafter is not None else None,
                drafter_kind=config.drafting().kind,
                lookup=0 if config.ngram_pool else min(config.drafting().longest_suffix, MOST_LOOKUP),
                batch=sizes.batch,
                context=context,
                slots=sizes.slots,
                chunk=sizes.chunk,
                vocab_size=pair.target.vocab_size,
                padded_vocab_size=pair.target.model.get_output_embeddings().weight.shape[0],
                eos_token_ids=pair.target.eos_token_ids,
                draft_vocabulary=pair.vocabulary.record(),
                lossy=tuple(rule for rule in config.rules() if rule in LOSSY),
                more_drafters=tuple(
                    model_spec(one.drafter, models[1][role])
                    for role, one in list(pair.by_role().items())[1:]
                    if one.drafter is not None
                ),
                tree_paths=config.shapes()[0].paths,
                tensors=tensor_specs(programs),
                programs=specs,
                files=checksums(folder),
                config=asked,
            )
            save_manifest(folder, manifest)
        with report.stage("check and measure"):
            tried = [] if config.draft.fixed else texts
            save_manifest(folder, measured(folder, manifest, pair.target.tokenizer, tried, report))
    report.say(f"engine {output}")
    return output


def _processor(backend: str, devices: tuple[str, ...]) -> dict[str, Any]:
    """What programs run on and nowhere else: native ones on this processor, and with plans on the GPUs."""
    if backend not in ("inductor", "tensorrt"):
        return {}
    gpus = {device: environment.accelerator(device) for device in devices if torch.device(device).type == "cuda"}
    found = environment.processor() if backend == "inductor" else {"tensorrt": release()}
    return {**found, **({"gpus": gpus} if gpus else {})}
