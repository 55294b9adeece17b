"""The training loop: steps, an average of the weights, checkpoints that a kill cannot spoil."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from .batches import collate, draw
from .config import UNROLL, TrainConfig
from .drafter import Drafter
from .features import Sample
from .precision import BFLOAT16, usual

WARMUP = 40  # steps
COOLDOWN = 0.5  # share of the steps over which the rate falls to zero
AVERAGE = 0.01  # part that a step's weights have in the running average
CLIP = 1.0
PROGRESS = "progress.pt"  # what a checkpoint holds beside the weights and the optimiser
DECAY = 0.01  # weight decay of matrices


def rate(step: float, steps: float) -> float:
    """Share of the learning rate: a climb, a plateau and a linear descent to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return max(0.0, min(1.0, (steps - step) / max(1.0, steps * COOLDOWN)))


class Trainer:
    """A drafter, its optimiser and its progress.

    Args:
        model: with `loss(batch, steps)`.
        work: folder of checkpoints and of the log.
        config: the run.
    """

    def __init__(self, model: Drafter, work: Path, config: TrainConfig) -> None:
        self.accelerator = Accelerator(cpu=True)  # its own mixed precision is one for the whole process
        self.mixed = (config.precision or usual()) == BFLOAT16
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in model.named_parameters():
            groups.setdefault((model.slowness(name), DECAY if p.dim() > 1 else 0.0), []).append(p)
        parts = [{"params": ps, "slowness": slow, "weight_decay": decay} for (slow, decay), ps in groups.items()]
        optimizer = torch.optim.AdamW(parts, lr=config.learning_rate, betas=(0.9, 0.95))
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.work, self.config = work, config
        self.step, self.seconds, self.pace = 0, 0.0, 0.0
        self.log: list[dict[str, Any]] = []
        self.begin()

    def begin(self) -> None:
        """The average starts from the weights that the model has now."""
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def save(self) -> None:
        """A checkpoint under a name of its own; the ones before it go when it is whole."""
        aside = self.work / "checkpoint.part"
        shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.save_state(str(aside))
        # Not by `register_for_checkpointing`, which reads back any pickle.
        state = {name: getattr(self, name) for name in ("step", "seconds", "pace", "average")}
        state["log"] = json.dumps(self.log)
        torch.save(state, aside / PROGRESS)
        whole = self.work / f"checkpoint-{self.step:07d}"
        shutil.rmtree(whole, ignore_errors=True)
        os.replace(aside, whole)
        for old in self._checkpoints():
            if old != whole:
                shutil.rmtree(old)

    def resume(self) -> bool:
        """Go on from the last checkpoint; whether there was one."""
        found = self._checkpoints()
        if found:
            self.accelerator.load_state(str(found[-1]))
            state = torch.load(found[-1] / PROGRESS, weights_only=True)
            self.step, self.seconds, self.pace = state["step"], state["seconds"], state["pace"]
            self.log, self.average = json.loads(state["log"]), state["average"]
        return bool(found)

    def _checkpoints(self) -> list[Path]:
        return sorted(self.work.glob("checkpoint-*"))

    def train_step(self, samples: list[Sample], planned: float) -> tuple[float, list[float]]:
        """One step -> its loss, and the share of right choices for each token drafted."""
        self.model.train()
        batch = collate(draw(samples, self.step, self.config.batch_tokens), self.config.hard)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            loss, right = self.model.loss(batch, self.config.unroll or UNROLL)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * rate(self.step, planned) * group["slowness"]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        with torch.no_grad():
            now = dict(self.model.named_parameters())
            part = max(AVERAGE, 1 / (1 + 0.2 * self.step))
            torch._foreach_lerp_(list(self.average.values()), [now[name].detach() for name in self.average], part)
        return loss.item(), right

    def averaged(self, work: Callable[[Drafter], Any]) -> Any:
        """What `work` makes of the model with averaged weights."""
        now = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        try:
            self._put(self.average)
            return work(self.model)
        finally:
            self._put(now)

    @torch.no_grad()
    def _put(self, weights: dict[str, torch.Tensor]) -> None:
        for name, p in self.model.named_parameters():
            p.copy_(weights[name])

    def planned(self) -> float:
        """Steps in all, by what is asked for and by what there is time for at the pace so far."""
        steps = float(self.config.steps)
        if not self.config.minutes or not self.pace:
            return steps
        return min(steps, self.step + max(0.0, 60.0 * self.config.minutes - self.seconds) / self.pace)

    def run(
        self,
        samples: list[Sample],
        refresh: Callable[[], list[Sample]],
        measure: Callable[[Drafter], dict[str, Any]],
        say: Callable[[str], None],
        tick: Callable[[str, int, float], None],
    ) -> None:
        """Train to the end.

        Args:
            samples: what there is to learn from now.
            refresh: called at each checkpoint for what there is then.
            measure: of the averaged model, on held-out text.
            say: prints a line.
            tick: told a note, the step and how many are planned, after each step.
        """
        saved, mean, planned = time.monotonic(), None, self.planned()
        while self.step < planned:
            begun = time.monotonic()
            loss, right = self.train_step(samples, planned)
            took = time.monotonic() - begun
            self.seconds += took
            self.pace = 0.95 * self.pace + 0.05 * took if self.pace else took
            planned = self.planned()
            seen = torch.tensor([loss, *right])
            mean = seen if mean is None or len(mean) != len(seen) else mean.lerp(seen, 0.05)
            shares = " ".join(f"{x:.3f}" for x in mean[1:].tolist())
            tick(f"loss {mean[0]:.3f}  right {shares}  {took:.1f} s/step", self.step, planned)
            if time.monotonic() - saved > 60 * self.config.save_minutes or self.step >= planned:
                held = self.averaged(measure)
                entry = {"step": self.step, "minutes": round(self.seconds / 60, 2), "loss": round(mean[0].item(), 4)}
                entry |= {"right": [round(x, 4) for x in mean[1:].tolist()], "rows": len(samples), "held": held}
                self.log.append(entry)
                say(json.dumps(entry))
                self.save()
                (self.work / "log.json").write_text(json.dumps(self.log, indent=1) + "\n")
                samples = refresh()
                saved = time.monotonic()
