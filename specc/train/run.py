"""`specc train`: answers, features, steps, folder."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..bench.prompts import read_prompts
from ..capture.load import LoadedModel, load_model
from ..errors import ConfigError
from ..progress import Report
from .acceptance import chain_acceptance
from .ask import ask, built_in, given
from .claim import claim, write_whole
from .config import ANSWERS, DRAFT, EAGLE, MEDUSA, ROWS, UNROLL, TrainConfig
from .data import Data, one_in
from .draft import Draft, small_llama
from .drafter import Drafter, Rows
from .eagle import Eagle
from .eagle3 import Eagle3
from .features import Reader, Sample
from .go_on import trained_before
from .kinds import check_target
from .loop import Trainer
from .medusa import Medusa
from .own import own_prompts
from .plot import plot_training
from .precision import FLOAT32, usual
from .progress import training_bar
from .save import LOG, check_folder, speculators_layout, write_folder
from .shape import DrafterShape
from .vocabulary import likely_ids

START_TOKENS = 24000  # on which first weights are fitted
HELD_PROMPTS = 64
HELD_SHARE = 16  # one row in so many of what was given is held out
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
    check_folder(out, config.target)
    init = Path(config.init).expanduser() if config.init else None
    if init and out.exists() and init.exists() and out.samefile(init):
        raise ConfigError(f"-o {out}: is the drafter of --init, which would be lost; give another folder")
    work = Path(config.work) if config.work else out.with_name(out.name + ".work")
    work.mkdir(parents=True, exist_ok=True)
    with report.stage("load the target"):
        loaded = load_model(config.target, role="target", dtype="float32")
    layers = check_target(config.family, loaded)
    before = trained_before(init, loaded) if init else None
    claim(config, loaded.digest, work)
    data, held = _data(config, loaded, work, layers, report)
    samples = data.refresh()
    said = sum(len(s.ids) - s.skip for s in samples)
    report.say(f"{len(samples)} rows, {said} tokens to learn; {len(held)} rows held out")
    model, reach = before or _drafter(config, loaded, work, samples), config.unroll or UNROLL
    trainer = Trainer(model, work, config)
    if trainer.resume():
        report.say(f"going on at step {trainer.step}")
    else:
        with report.stage("first weights"):
            if before is None:
                model.start(loaded.model, _texts(loaded.model, layers, samples))
            trainer.begin()
        report.say(f"{'before' if before else 'untrained'}: {chain_acceptance(model, held, reach)}")
    with training_bar(report) as bar:
        task = bar.add_task("training", total=config.steps, note="")
        trainer.run(
            samples,
            data.refresh,
            lambda model: chain_acceptance(model, held, reach),
            report.say,
            lambda note, step, planned: bar.update(task, completed=step, total=planned, note=note),
        )
    trainer.averaged(lambda model: _save(model, config, loaded, layers, trainer.log, out))
    report.say(f"wrote {out}")
    return out


def _data(
    config: TrainConfig, loaded: LoadedModel, work: Path, layers: tuple[int, ...], report: Report
) -> tuple[Data, list[Sample]]:
    """Rows to learn from and rows held out; the target answers prompts first where there are no answers."""
    loaded = dataclasses.replace(loaded, model=_for_reading(loaded.model, config.precision or usual()))
    reader, longest = Reader(loaded.model, layers), loaded.max_positions
    read = "-".join(map(str, layers)) or "none"

    what = config.what
    paths, held_paths = what.paths("data"), what.paths("held")
    apart = {} if held_paths or not paths else {"apart": one_in(HELD_SHARE)}

    def data(paths: list[Path], name: str, **more: Any) -> Data:
        return Data(paths, work / f"{name}-of-{read}", loaded.tokenizer, reader, longest, report, **more)

    if not paths:
        rows_of = what.rows or ROWS
        paths, held_paths = [work / "answers"], [work / "held"]
        if what.prompts is None:
            held = built_in(held_paths[0], loaded.tokenizer, held=True)
            own = own_prompts(loaded, paths[0]) if what.own_prompts else None
            learnt = own or built_in(paths[0], loaded.tokenizer, held=False)
            count = what.own_prompts or what.answers or ANSWERS
            for folder, number, prompts in ((held_paths[0], HELD_PROMPTS, held), (paths[0], count, learnt)):
                whole = -(-number // rows_of) * rows_of  # files are full, so that more answers go on behind them
                ask(loaded, folder, whole, prompts, what, report)
        else:
            texts = [(prompt.kind, prompt.text) for prompt in read_prompts(what.prompts)]
            held_texts = texts[::16]
            texts = [text for i, text in enumerate(texts) if i % 16] or held_texts
            ask(loaded, held_paths[0], len(held_texts), given(held_texts), what, report)
            ask(loaded, paths[0], len(texts), given(texts), what, report)
    rows = data(paths, "features", **apart)
    samples = rows.refresh()
    kept = data(held_paths, "held-features").refresh() if held_paths else rows.held()
    if held_paths:
        known = {row.ids.numpy().tobytes() for row in kept}
        rows.apart = lambda row: row.ids.numpy().tobytes() in known
        if twice := len(rows.held()):
            report.say(f"{twice} rows of --data are held out as well, and not learnt from")
        samples = rows.refresh()
    if not samples or not kept:
        raise ConfigError(
            f"--data {what.data or paths[0]} holds {len(samples)} answers of 5 tokens or more to learn from and "
            f"{len(kept)} to measure on (one in {HELD_SHARE} by its content, where --held is not given); give more"
        )
    return rows, kept


def _for_reading(model: Any, precision: str) -> Any:
    """The target that writes answers and is read: itself, or a copy in bfloat16.

    (A model from a GGUF file calls itself quantised, and its own `bfloat16` refuses.)
    """
    return model if precision == FLOAT32 else torch.nn.Module.bfloat16(copy.deepcopy(model))


def _drafter(config: TrainConfig, loaded: LoadedModel, work: Path, samples: list[Sample]) -> Drafter:
    """The drafter before its first weights."""
    torch.manual_seed(0)
    embedding = loaded.model.get_input_embeddings().weight.detach().float()
    head = loaded.model.get_output_embeddings().weight.detach().float()
    if config.family == DRAFT:
        return Draft(small_llama(loaded.config, config.hidden or 192, config.layers or 4))
    if config.family == MEDUSA:
        return Medusa(config.unroll or UNROLL, head, config.target)
    file = work / "vocabulary.pt"
    if not file.exists():
        kept = likely_ids(samples, config.draft_vocab or DRAFT_VOCAB, len(head))
        write_whole(file, lambda aside: torch.save(kept, aside))
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
    write_folder(out, {**files, LOG: log}, loaded.tokenizer if config.family == DRAFT else None)
    plot_training(log, out / "training.png")
