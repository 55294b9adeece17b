"""`specc train`: answers, features, steps, folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ..bench.prompts import read_prompts
from ..capture.load import LoadedModel, load_model
from ..errors import CaptureError, ConfigError
from ..progress import Report
from .acceptance import chain_acceptance
from .ask import ask, built_in
from .config import DRAFT, EAGLE, EAGLE3, MEDUSA, TrainConfig
from .data import Data
from .draft import Draft, small_llama
from .drafter import Drafter, Rows
from .eagle import Eagle
from .eagle3 import Eagle3
from .features import Reader, Sample
from .loop import Trainer
from .medusa import Medusa
from .plot import plot_training
from .precision import usual
from .progress import training_bar
from .save import speculators_layout, write_folder
from .shape import DrafterShape
from .vocabulary import frequent_ids

KINDS: dict[str, type[Drafter]] = {EAGLE3: Eagle3, EAGLE: Eagle, MEDUSA: Medusa, DRAFT: Draft}
START_TOKENS = 24000  # on which first weights are fitted
HELD_PROMPTS = 64
DRAFT_VOCAB = 8192


def train(config: TrainConfig, report: Report) -> Path:
    """Train a drafter and write it to `config.output`; a run that was killed goes on where it stopped.

    Raises:
        ConfigError: the data cannot be used.
        CaptureError: the target cannot be loaded, or is built otherwise than the drafter can read.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    out = Path(config.output)
    work = Path(config.work) if config.work else out.with_name(out.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    with report.stage("load the target"):
        loaded = load_model(config.target, role="target", dtype=config.precision or usual())
    layers = _taps(config.family, loaded)
    _claim(config, loaded, work)
    data, held = _data(config, loaded, work, layers, report)
    samples = data.samples if config.what.held or not config.what.data else data.without(held)
    said = sum(len(s.ids) - s.skip for s in samples)
    report.say(f"{len(samples)} rows, {said} tokens to learn; {len(held)} rows held out")
    model = _drafter(config, loaded, work, samples)
    trainer = Trainer(model, work, config)
    if trainer.resume():
        report.say(f"going on at step {trainer.step}")
    else:
        with report.stage("first weights"):
            loaded.model.float()  # least squares want all digits
            model.start(loaded.model, _texts(loaded.model, layers, samples))
            trainer.begin()
        report.say(f"untrained: {chain_acceptance(model, held)}")
    with training_bar(report) as bar:
        task = bar.add_task("training", total=config.steps, note="")
        trainer.run(
            samples,
            data.refresh,
            lambda model: chain_acceptance(model, held),
            report.say,
            lambda note, step, planned: bar.update(task, completed=step, total=planned, note=note),
        )
    trainer.averaged(lambda model: _save(model, config, loaded, layers, trainer.log, out))
    report.say(f"wrote {out}")
    return out


def _claim(config: TrainConfig, loaded: LoadedModel, work: Path) -> None:
    """Write down what the work folder is for; one that was for something else is not gone on with."""
    names = ("family", "draft_vocab", "hidden", "layers")
    mine = {"target": loaded.digest, **{name: getattr(config, name) for name in names}}
    if config.family == MEDUSA:
        mine["unroll"] = config.unroll
    file = work / "run.json"
    there = json.loads(file.read_text()) if file.exists() else mine
    for name in mine:
        if there.get(name) != mine[name]:
            raise ConfigError(
                f"{work} belongs to a run with {name} {there.get(name)}, and this one has {mine[name]}; "
                "give another folder with --work, or remove it"
            )
    file.write_text(json.dumps(mine, indent=1) + "\n")


def _taps(family: str, loaded: LoadedModel) -> tuple[int, ...]:
    """Layers that are read, checked against what the target has."""
    inside = loaded.model.base_model
    if family != DRAFT and not (hasattr(inside, "layers") and hasattr(inside, "norm")):
        raise CaptureError(
            f"target: {loaded.source} ({loaded.architecture}) has no layers and norm where a {family} "
            "drafter reads it; train an independent model: specc train draft"
        )
    layers = KINDS[family].taps(loaded.config.num_hidden_layers)
    if layers and (list(layers) != sorted(set(layers)) or min(layers) < 1):
        raise CaptureError(
            f"target: {loaded.source} has {loaded.config.num_hidden_layers} layers and a {family} drafter reads what "
            f"enters layers {', '.join(map(str, layers))}; train an eagle drafter instead"
        )
    return layers


def _data(
    config: TrainConfig, loaded: LoadedModel, work: Path, layers: tuple[int, ...], report: Report
) -> tuple[Data, list[Sample]]:
    """Rows to learn from and rows held out; the target answers prompts first where there are no answers."""
    reader, longest = Reader(loaded.model, layers), loaded.max_positions
    read = "-".join(map(str, layers)) or "none"

    def data(paths: list[Path], name: str) -> Data:
        return Data(paths, work / f"{name}-of-{read}", loaded.tokenizer, reader, longest, report)

    what = config.what
    paths, held_paths = what.paths("data"), what.paths("held")
    if not paths:
        paths, held_paths = [work / "answers"], [work / "held"]
        if what.prompts is None:
            ask(loaded, held_paths[0], HELD_PROMPTS, built_in(held_paths[0], loaded.tokenizer, True), what, report)
            ask(loaded, paths[0], what.answers, built_in(paths[0], loaded.tokenizer, False), what, report)
        else:
            texts = [(prompt.kind, prompt.text) for prompt in read_prompts(what.prompts)]
            held_texts = texts[::16]
            texts = [text for i, text in enumerate(texts) if i % 16] or held_texts
            ask(loaded, held_paths[0], len(held_texts), lambda: held_texts.__getitem__, what, report)
            ask(loaded, paths[0], len(texts), lambda: texts.__getitem__, what, report)
    rows = data(paths, "features")
    samples = rows.refresh()
    held = data(held_paths, "held-features").refresh() if held_paths else samples[::16]
    if not samples or not held:
        raise ConfigError(f"--data {what.data or paths[0]} holds {len(samples)} answers of 5 tokens or more; give more")
    return rows, held


def _drafter(config: TrainConfig, loaded: LoadedModel, work: Path, samples: list[Sample]) -> Drafter:
    """The drafter before its first weights."""
    torch.manual_seed(0)
    embedding = loaded.model.get_input_embeddings().weight.detach().float()
    head = loaded.model.get_output_embeddings().weight.detach().float()
    if config.family == DRAFT:
        return Draft(small_llama(loaded.config, config.hidden or 192, config.layers or 4))
    if config.family == MEDUSA:
        return Medusa(config.unroll, head, config.target)
    file = work / "vocabulary.pt"
    if not file.exists():
        torch.save(frequent_ids(samples, config.draft_vocab or DRAFT_VOCAB, len(head)), file)
    kept, shape = torch.load(file, weights_only=True), DrafterShape.of(loaded.config)
    if config.family == EAGLE:
        return Eagle(shape, embedding, head, kept)
    return Eagle3(shape, embedding, kept)


def _texts(target: Any, layers: tuple[int, ...], samples: list[Sample]) -> Rows:
    """Some rows with the states of the taps and of the input of the LM head."""
    reader, rows, count = Reader(target, (*layers, target.config.get_text_config().num_hidden_layers)), [], 0
    for sample in samples[:: max(1, len(samples) // 200)]:
        if count < START_TOKENS:
            rows.append((sample.ids, reader.read(sample.ids, skip=sample.skip)[0].clone()))
            count += len(sample.ids)
    reader.close()
    return rows


def _save(
    model: Drafter, config: TrainConfig, loaded: LoadedModel, layers: tuple[int, ...], log: list[Any], out: Path
) -> None:
    files = model.files(loaded.config, layers)
    if config.layout == "speculators":
        files = speculators_layout(files, config.target, loaded.architecture)
    write_folder(out, {**files, "training.json": log}, loaded.tokenizer if config.family == DRAFT else None)
    plot_training(log, out / "training.png")
