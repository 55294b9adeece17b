"""The target and what drafts for it: read, matched, captured and proved."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import environment
from .config import CompileConfig
from .draft_ids import draft_ids
from .draft_vocabulary import DraftVocabulary, describe
from .drafter import SELF, role_of
from .errors import CaptureError, ConfigError
from .manifest import ModelSpec
from .passes.vocabulary import own_ids, target_columns
from .plan import plan_programs
from .program import Model
from .progress import Report

if TYPE_CHECKING:
    from .capture import FeatureDrafter, LoadedModel

DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class Pair:
    """What an engine is made of.

    Attributes:
        drafter: a whole model (of its own, or layers of the target), one that reads the target's hidden states, or
            None where no weights draft.
        vocabulary: how the drafter's ids stand to the target's.
        kept: layers of the target that the drafter is made of; empty where it has weights of its own.
        more: the target with each further drafter, where several draft side by side.
    """

    target: LoadedModel
    drafter: LoadedModel | FeatureDrafter | None = None
    vocabulary: DraftVocabulary = field(default_factory=DraftVocabulary)
    kept: tuple[int, ...] = ()
    more: tuple[Pair, ...] = ()

    def draft_logits(self, tokens: Tensor) -> Tensor:
        """The drafter's logits `[T, V]` float32, by the target's ids, behind each of `[1, T]` tokens of a text.

        A drafter that reads features begins behind the second token: its first row is zeros.
        """
        from .capture import FeatureDrafter

        drafter = self.drafter
        assert drafter is not None
        with torch.no_grad():
            if not isinstance(drafter, FeatureDrafter):
                fed_as = self.vocabulary.fed_as
                own = tokens if fed_as is None else own_ids(tokens, fed_as)
                logits: Tensor = drafter.model(input_ids=own, use_cache=False).logits[0]
            else:
                logits = drafter.first_drafts(self.target.model, tokens)
        columns = self.vocabulary.column_of
        return (logits if columns is None else target_columns(logits, columns))[:, : self.target.vocab_size].float()

    def by_role(self) -> dict[str, Pair]:
        """The target with each drafter, by the name of its model in programs."""
        found = [one for one in (self, *self.more) if one.drafter is not None]
        return {role_of(place): one for place, one in enumerate(found)}

    def bytes(self) -> int:
        """Size of all weights, those that both models read counted once."""
        models = [self.target.model, *(one.drafter.model for one in (self, *self.more) if one.drafter is not None)]
        return sum({p.data_ptr(): p.nbytes for model in models for p in model.parameters()}.values())


def digests(config: CompileConfig) -> list[str]:
    """Digests of the models' files, the target's first.

    Raises:
        CaptureError: there is no model at a place.
    """
    from . import capture

    spec, found = config.drafting(), [capture.digest_source(config.target, role="target")]
    for source in spec.sources:
        if spec.reads_features:
            found.append(capture.digest_drafter(source))
        else:
            with _whole_model(source):
                found.append(capture.digest_source(source, role="drafter"))
    return found


def load_pair(config: CompileConfig, texts: Sequence[str], report: Report) -> Pair:
    """Read the models and match their vocabularies; prints what was found to differ.

    Raises:
        CaptureError, TokenizerError: a model cannot be read, or they do not belong together.
    """
    from . import capture

    spec = config.drafting()
    with report.stage("load the models"):
        target = capture.load_model(config.target, role="target", dtype=config.dtype)
        if spec.reads_features:
            features = capture.load_feature_drafter(spec, target, dtype=config.dtype)
            drafted = int((features.column_of >= 0).sum()) if features.column_of is not None else 0
            pair = Pair(target, features, DraftVocabulary(column_of=features.column_of, size=drafted))
        elif spec.sources:
            found = []
            for role, source in zip(spec.roles, spec.sources, strict=True):
                with _whole_model(source):
                    drafter = capture.load_model(source, role=role, dtype=config.dtype)
                found.append(Pair(target, drafter, capture.match_vocabularies(target, drafter)))
            pair = dataclasses.replace(found[0], more=tuple(found[1:]))
        elif spec.kind == SELF:
            return Pair(target, capture.kept_layers(target, spec.numbers), kept=spec.numbers)
        else:
            return Pair(target)
    for note in getattr(pair.drafter, "notes", ()):
        report.say(f"note: {note}")
    narrowed = []
    for one in (pair, *pair.more):
        if told := describe(one.vocabulary.record()):
            report.say(f"vocabularies: {told}")
        narrowed.append(Pair(target, one.drafter, _narrowed(one.vocabulary, config, target, texts, report)))
    return dataclasses.replace(narrowed[0], more=tuple(narrowed[1:]))


def capture_pair(pair: Pair, batch: int, report: Report) -> dict[int, dict[str, Model]]:
    """The models as graphs, by rows that they were captured for (1, and B) and by role, proved to be the models.

    Raises:
        CaptureError: a model cannot be captured, or its graph does not decode as it does.
    """
    from . import capture

    features, drafters = isinstance(pair.drafter, capture.FeatureDrafter), pair.by_role()
    models: dict[int, dict[str, Model]] = {}
    with report.stage("capture"):
        for rows in sorted({1, batch}):
            taps = pair.drafter.taps if isinstance(pair.drafter, capture.FeatureDrafter) else None
            models[rows] = {"target": capture.capture(pair.target, name="target", batch=rows, taps=taps)}
            for role, one in drafters.items():
                if isinstance(one.drafter, capture.FeatureDrafter):
                    models[rows][role] = capture.capture_drafter(one.drafter, pair.target, batch=rows)
                else:
                    whole = capture.capture(one.drafter, name=role, batch=rows)
                    models[rows][role] = dataclasses.replace(whole, kept=one.kept)
    with report.stage("prove the capture"):
        capture.prove(pair.target, models[1]["target"])
        for role, one in drafters.items():
            if isinstance(one.drafter, capture.LoadedModel):
                capture.prove(one.drafter, models[1][role], family_too=not one.kept)
        for role in models[1] if batch > 1 else ():
            if role == "target" or not features:
                capture.prove_rows(models[1][role], models[batch][role], batch)
    for captured in models.values():  # once proved as it is
        for role, one in drafters.items():
            captured[role] = one.vocabulary.of(captured[role])
    return models


def choose_context(config: CompileConfig, pair: Pair) -> int:
    """Tokens of context: what was asked for, else what the target can, at most 2048. A drafter that can fewer drafts
    as far as it goes.

    Raises:
        ConfigError: more was asked than the target has positions.
    """
    most = pair.target.max_positions
    if config.context is not None and config.context > most:
        raise ConfigError(
            f"--context {config.context} is more than the target's {most} positions; use --context {most}"
        )
    return config.context or min(DEFAULT_CONTEXT, most)


def cut_to_heads(config: CompileConfig, pair: Pair, report: Report) -> CompileConfig:
    """The configuration with trees that are no deeper than the drafter can go; says so where it cuts."""
    most = getattr(pair.drafter, "depth", 0)
    shapes = config.draft.shapes()
    if not most or all(tree.depth <= most for tree in shapes):
        return config
    report.say(
        f"note: the drafter has {most} heads: drafts of {max(tree.depth for tree in shapes)} levels are cut to {most}"
    )
    main = tuple(path for path in shapes[0].paths[1:] if len(path) <= most)
    lengths = sorted({min(most, tree.depth) for tree in shapes[1:]})
    ladder = ",".join(map(str, lengths)) if lengths else None
    draft = dataclasses.replace(config.draft, ladder=ladder)
    if not draft.tune:  # which chooses nothing that is deeper
        draft = dataclasses.replace(draft, draft_length=None, tree=main)
    return dataclasses.replace(config, draft=draft)


def check_room(config: CompileConfig, pair: Pair, report: Report) -> None:
    """Say what the compilation needs, and refuse it where that is not there.

    Raises:
        ConfigError: too little memory or disk.
    """
    size = pair.bytes()
    copies = 1 + len(list(plan_programs(config))) if config.backend == "tensorrt" else 1  # each plan has its own
    memory, disk = 3 * size, copies * size
    report.say(f"models {size / 1e6:.0f} MB; needs about {memory / 1e6:.0f} MB of memory, {disk / 1e6:.0f} MB of disk")
    environment.check_output(Path(config.output), int(1.2 * disk))
    environment.check_memory(memory)


def model_spec(loaded: LoadedModel | FeatureDrafter, model: Model) -> ModelSpec:
    """What an engine says of a model."""
    from .capture import FeatureDrafter

    count = getattr(loaded, "parameters", None) or sum(p.numel() for p in loaded.model.parameters())
    return ModelSpec(
        source=loaded.source,
        architecture=loaded.architecture,
        digest=loaded.digest,
        parameters=count,
        layers=len(model.graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)),
        max_positions=model.max_positions,
        taps=loaded.taps.layers if isinstance(loaded, FeatureDrafter) else (),
    )


def note_positions(pair: Pair, context: int, report: Report) -> None:
    """Say it where texts can grow longer than what the drafter was made for."""
    most = context if pair.drafter is None else pair.drafter.max_positions
    if most < context:
        report.say(
            f"note: the drafter was made for texts of {most} tokens and the context is {context}: beyond {most} texts "
            "go on with plain steps"
        )


@contextlib.contextmanager
def _whole_model(source: str) -> Iterator[None]:
    """Where a whole model is expected, say so of a drafter that is none."""
    from . import capture

    try:
        yield
    except CaptureError as e:
        capture.check_whole(source, e)
        raise


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
