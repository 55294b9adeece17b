"""Compile: models in, engine out. The one place that sees every room."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import __version__, environment
from .build import build_programs, check_without
from .choose_draft import choose_draft
from .config import CompileConfig, DraftConfig
from .draft_ids import draft_ids, ids_digest
from .draft_vocabulary import DraftVocabulary, describe
from .engine_writer import checksums, save_manifest, save_weights, slots_for, sweep, tensor_specs, writing
from .errors import ConfigError
from .keys import engine_key, is_current
from .lower.cache import check_cache
from .manifest import EngineManifest, ModelSpec
from .measure import measured
from .program import Model, Sizes
from .progress import Report
from .samples import sample_texts

if TYPE_CHECKING:
    from .capture import LoadedModel

DEFAULT_CONTEXT = 2048


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
    names = {f.name for f in dataclasses.fields(DraftConfig)}
    known = {f.name for f in dataclasses.fields(CompileConfig)} - {"draft"} | names
    for name in options:
        if name not in known:
            raise ConfigError(f"compile() has no option {name!r}; the options are {', '.join(sorted(known))}")
    for name, place in {"target": target, "drafter": drafter, "output": output, "dump": dump or ""}.items():
        if not isinstance(place, str | os.PathLike):
            raise ConfigError(f"{name}: expected a text or a path, found {place!r}")
    if not isinstance(without, tuple | list) or not all(isinstance(stem, str) for stem in without):
        raise ConfigError(f"without: expected a list of names of passes, found {without!r}")
    draft = DraftConfig(**{k: v for k, v in options.items() if k in names})
    rest = {k: v for k, v in options.items() if k not in names}
    config = CompileConfig(target=str(target), drafter=str(drafter), output=str(output), draft=draft, **rest)
    return compile_engine(config, Report(quiet), dump=Path(dump) if dump else None, without=tuple(without))


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
    environment.check_device(config.device)
    if config.backend == "inductor":
        environment.check_compiler()
        check_cache()
    from . import capture  # brings in transformers: only where it is needed

    sources = {"target": config.target}
    for source in config.drafting().sources:
        sources["drafter"] = source
    check_without(config, without)
    texts = sample_texts(config.draft.prompts)
    digests = [capture.digest_source(s, role=role) for role, s in sources.items()]
    digests.append(hashlib.sha256("\n".join(texts).encode()).hexdigest())
    digests += [ids_digest(str(config.draft.draft_vocab))] if config.draft.draft_vocab is not None else []
    key = engine_key(config, digests, without)
    sweep(output)
    if dump is None and is_current(output, key):
        report.say(f"{output} is up to date")
        return output
    with report.stage("load the models"):
        loaded = {role: capture.load_model(source, role=role, dtype=config.dtype) for role, source in sources.items()}
    vocabulary = DraftVocabulary()
    if "drafter" in loaded:
        vocabulary = capture.match_vocabularies(loaded["target"], loaded["drafter"])
        if told := describe(vocabulary.record()):
            report.say(f"other tokenizers: {told}")
        vocabulary = _narrowed(vocabulary, config, loaded["target"], texts, report)
    context = choose_context(config, loaded)
    _check_room(output, loaded, report)
    with report.stage("capture"):
        models = {
            batch: {role: capture.capture(one, name=role, batch=batch) for role, one in loaded.items()}
            for batch in sorted({1, config.batch})
        }
    with report.stage("prove the capture"):
        for role, one in loaded.items():
            capture.prove(one, models[1][role])
            if config.batch > 1:
                capture.prove_rows(models[1][role], models[config.batch][role], config.batch)
    for captured in models.values():  # once proved as it is
        if "drafter" in captured:
            captured["drafter"] = vocabulary.of(captured["drafter"])
    asked = config.to_json()
    if config.draft.tune:
        draft, tuned = choose_draft(config, loaded, models[1], texts, context, report, vocabulary)
        config = dataclasses.replace(config, draft=draft)
        asked |= {"draft": {**config.to_json()["draft"], "tune": True}, "tuned": tuned}
    depth, nodes = (max(measure(tree) for tree in config.draft.shapes()) for measure in (lambda t: t.depth, len))
    sizes = Sizes(config.batch, slots_for(context, depth, config.chunk), config.chunk, nodes)
    with writing(output) as folder:
        programs, specs, weights = build_programs(config, models, sizes, folder, report, dump=dump, without=without)
        with report.stage("save"):
            save_weights(folder, weights, programs)
            capture.save_text_files(loaded["target"], folder)
            native = config.backend == "inductor" and config.device == "cpu"
            manifest = EngineManifest(
                engine_key=key,
                specc_version=__version__,
                torch_version=torch.__version__,
                backend=config.backend,
                device=config.device,
                dtype=config.dtype,
                processor=environment.processor() if native else {},
                target=_model_spec(loaded["target"], models[1]["target"]),
                drafter=_model_spec(loaded["drafter"], models[1]["drafter"]) if "drafter" in loaded else None,
                drafter_kind=config.drafting().kind,
                batch=sizes.batch,
                context=context,
                slots=sizes.slots,
                chunk=sizes.chunk,
                vocab_size=loaded["target"].vocab_size,
                padded_vocab_size=loaded["target"].model.get_output_embeddings().weight.shape[0],
                eos_token_ids=loaded["target"].eos_token_ids,
                draft_vocabulary=vocabulary.record(),
                tree_paths=config.draft.shape().paths,
                tensors=tensor_specs(programs),
                programs=specs,
                files=checksums(folder),
                config=asked,
            )
            save_manifest(folder, manifest)
        with report.stage("check and measure"):
            tried = [] if config.draft.fixed else texts
            save_manifest(folder, measured(folder, manifest, loaded["target"].tokenizer, tried, report))
    report.say(f"engine {output}")
    return output


def _narrowed(
    vocabulary: DraftVocabulary, config: CompileConfig, target: LoadedModel, texts: Sequence[str], report: Report
) -> DraftVocabulary:
    """The vocabulary without what `--draft-vocab` leaves out."""
    wanted = config.draft.draft_vocab
    if wanted is None:
        return vocabulary
    counted = texts if config.draft.prompts else ()
    ids, source = draft_ids(str(wanted), target.tokenizer, counted, target.eos_token_ids, target.vocab_size)
    narrowed = vocabulary.only(ids, target.vocab_size)
    report.say(f"draft vocabulary: {source}; {describe(narrowed.record())}")
    return narrowed


def choose_context(config: CompileConfig, loaded: dict[str, LoadedModel]) -> int:
    """Tokens of context: what was asked for, else what every model can, at most 2048.

    Raises:
        ConfigError: more was asked than a model has positions.
    """
    for role, one in loaded.items():
        if config.context is not None and config.context > one.max_positions:
            raise ConfigError(
                f"--context {config.context} is more than the {role}'s {one.max_positions} positions; "
                f"use --context {one.max_positions}"
            )
    return config.context or min(DEFAULT_CONTEXT, *(one.max_positions for one in loaded.values()))


def _check_room(output: Path, loaded: dict[str, LoadedModel], report: Report) -> None:
    size = sum(p.numel() * p.element_size() for one in loaded.values() for p in one.model.parameters())
    report.say(
        f"models {size / 1e6:.0f} MB; needs about {3 * size / 1e6:.0f} MB of memory, {size / 1e6:.0f} MB of disk"
    )
    environment.check_output(output, int(1.2 * size))
    environment.check_memory(3 * size)


def _model_spec(loaded: LoadedModel, model: Model) -> ModelSpec:
    return ModelSpec(
        source=loaded.source,
        architecture=loaded.architecture,
        digest=loaded.digest,
        parameters=sum(p.numel() for p in loaded.model.parameters()),
        layers=len(model.graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)),
        max_positions=model.max_positions,
    )
