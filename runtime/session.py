"""Session: texts side by side in the rows of an engine. They join, advance together, and leave one by one."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Self, Unpack
from weakref import ref

from ..errors import ConfigError, EngineError
from ..manifest import MAX_BATCH
from .controller import Controller
from .ending import Ending
from .flight import Outcome, Work
from .logprobs import read_logprobs
from .options import Options, whole
from .request import Request
from .result import Generation, Stats, TokenLogprob
from .row import Row
from .turn import Alone

if TYPE_CHECKING:
    from .engine import Engine


class Job:
    """One text of a session.

    Attributes:
        request: what was asked.
        row: where its text is.
        logprobs: one entry per id so far; None where they were not asked for.
        stats: counts so far.
        result: the `Generation`, once it has ended.
        controller: chooses what is drafted; None where that is fixed.
    """

    def __init__(
        self, request: Request, row: Row, ending: Ending, stats: Stats, controller: Controller | None = None
    ) -> None:
        self.request, self.row, self.stats, self.controller = request, row, stats, controller
        self.result: Generation | None = None
        self.logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self._ending, self._start = ending, len(row.ids)

    @property
    def token_ids(self) -> list[int]:
        """New ids so far; a stop string may take back the last."""
        return list(self._ending.ids)

    @property
    def text(self) -> str:
        """New text so far, of which nothing is taken back."""
        return self._ending.text

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, as in `Generation`; None while it runs."""
        return self.result.finish_reason if self.result else None

    def take(self, outcome: Outcome, seconds: float, plain: bool) -> None:
        """Take in one step."""
        self.stats.decode_s += seconds
        self.stats.count(outcome.accepted, outcome.offered, plain)
        if self.logprobs is not None:
            self.logprobs += read_logprobs(outcome.results, outcome.place, outcome.block, self.request)
        self._ending.push(outcome.block)
        self.stats.tokens = len(self._ending.ids)
        if self._ending.finish_reason:
            self.end(self._ending.finish_reason)

    def end(self, reason: str) -> None:
        """End here."""
        reason = self._ending.end(reason)
        self.agree()
        self.row.remember()
        self.result = Generation(
            text=self.text,
            token_ids=self.token_ids,
            finish_reason=reason,
            stats=self.stats,
            seed=self.request.seed,
            sample=self.request.sample,
            logprobs=self.logprobs,
            acceptance=self.request.rule,
        )

    def agree(self) -> None:
        """The row and the log-probabilities keep the tokens that the text has: others were taken back, or not taken."""
        self.stats.tokens = len(self._ending.ids)
        if self.logprobs is not None:
            del self.logprobs[self.stats.tokens :]
        if len(self.row.ids) > self._start + self.stats.tokens:
            self.row.truncate(self._start + self.stats.tokens)


class Session:
    """Up to `batch` texts in the rows of an engine; made by `Engine.session`.

    It holds the engine until it is closed: other threads wait, and another call on the engine by the thread that opened
    it, or that used it last, ends it. Its own methods may be called from several threads.

    Attributes:
        jobs: those that run, in the order they joined.
    """

    def __init__(self, engine: Engine, kind: str = "session") -> None:
        self.jobs: list[Job] = []
        self._engine, self._machine, self._kind, self._pilot = engine, engine.machine, kind, engine.pilot
        self._alone = Alone()
        self._closed = self._superseded = False
        self._first: tuple[tuple[int, ...], Row] | None = None  # a prompt and the row that began with it last
        self._turn = engine.turns.take(ref(self))
        self._turn.__enter__()
        engine.settle_threads()

    def add(self, prompt: str | Iterable[int], *, sample: int = 0, **options: Unpack[Options]) -> Job:
        """Let a text join: its prompt is run now, its first tokens come with the next `step`.

        Args:
            prompt: as `Engine.generate` takes one.
            sample: which of several samples of one seed.
            options: as `Engine.generate` takes them; with `reuse`, it joins in the row that holds most of its prompt.

        Raises:
            ConfigError: no row is free, or as `Engine.generate`.
        """
        engine = self._engine
        request = Request.make(engine.manifest, engine.ids_of(prompt), text=engine.text, **options)
        if request.n > 1:
            raise ConfigError(f"n {request.n}: a job is one text; add one for each sample, with sample=0, 1, ...")
        if whole("sample", sample, 0, 2**63 - 1) and not request.temperature:
            raise ConfigError(f"sample {sample} at temperature 0 is the same text as sample 0; set a temperature")
        return self.start(dataclasses.replace(request, sample=sample))

    def step(self, draft: Sequence[int] | Mapping[Job, Sequence[int]] = ()) -> list[Job]:
        """Advance every job by one step; those that end free their rows. Returns the jobs that advanced.

        Args:
            draft: for tests: tokens to draft at nodes 1, 2, ... of the draft tree instead of the drafter's own, which
                -1 leaves; by job, or for all jobs.

        Raises:
            ConfigError: a draft is for a job that does not run, or not what its programs can be told.
        """
        with self._working():
            jobs = list(self.jobs)
            if isinstance(draft, Mapping) and not draft.keys() <= set(jobs):
                raise ConfigError("draft names a job that does not run in this session; give those of session.jobs")
            start = perf_counter()
            try:
                works, decision = [self._work(job, draft) for job in jobs], None
                if self._pilot:
                    works, decision = self._pilot.steer(works, [job.controller for job in jobs])
                open_ = any(job.controller and job.controller.undecided for job in jobs)
                outcomes = self._machine.step(works, more=not open_ and self._kind != "step")
                seconds = perf_counter() - start
                for job, work, outcome in zip(jobs, works, outcomes, strict=True):
                    job.take(outcome, seconds, plain=not work.length)
                if self._pilot and decision:
                    self._pilot.learn(decision, outcomes)
            except BaseException:  # interrupted, say: for those that did not take theirs, the step was none
                for job in jobs:
                    job.agree()
                raise
            finally:
                self.jobs = [job for job in self.jobs if not job.result]
            own = [outcome for work, outcome in zip(works, outcomes, strict=True) if not work.draft]
            self._engine.watch.see(own, self._pilot)  # what a test forced says nothing of the drafter
            return jobs

    def cancel(self, job: Job) -> None:
        """End a job where it is; its row is free, and its result is what it has."""
        with self._working():
            if job in self.jobs:
                job.end("cancelled")
                self.jobs.remove(job)
            elif not isinstance(job, Job):
                raise ConfigError(f"cancel: expected a job, which add() returned, not {job!r}")
            elif job.result is None:
                raise ConfigError("cancel: this job is of another session, or of one that was closed")

    def __iter__(self) -> Iterator[list[Job]]:
        """Step until every job has ended: `for advanced in session:`. Jobs may join and leave meanwhile."""
        while self.jobs:
            yield self.step()
        self._check_not_superseded()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._alone.leave()  # methods of this thread have ended, by an interrupt if not by themselves
        self.close()

    def close(self) -> None:
        """Let the engine go, once the step of another thread has ended. Jobs that run get no result; their texts stay
        in the rows as far as they came."""
        with self._alone:
            self._end()

    def supersede(self) -> None:
        """End this session for a later call in the same thread: an interrupted loop may have left it open."""
        with self._alone:
            self._superseded = not self._closed
            self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self.jobs.clear()
            self._turn.__exit__(None, None, None)

    def start(self, request: Request, resume: bool = False) -> Job:
        """Let a checked request join; `resume` goes on with the text that the engine holds."""
        with self._working():
            begun = perf_counter()
            row = self._machine.last if resume else self._free(request)
            if resume:
                request.fit(self._engine.manifest, len(row.ids))  # another thread may have changed the text
            like = self._first[1] if request.sample and self._first and self._first[0] is request.prompt else None
            pilot = self._pilot if request.adaptive and self._pilot and self._pilot.serves(request.rule) else None
            kept = self._machine.begin(row, request, resume, like if like is not row else None, drafts=not pilot)
            self._first = (request.prompt, row)
            room = self._engine.manifest.context - len(row.ids)
            controller = pilot.join(row, request.rule, min(request.max_new_tokens, room)) if pilot else None
            levels = self._machine.programs.longest(request.rule) if controller else request.draft_length
            stats = Stats(
                len(request.prompt),
                drafted_per_position=[0] * levels,
                accepted_per_position=[0] * levels,
                reused_tokens=kept,
            )
            job = Job(request, row, Ending(request, self._engine.text, room), stats, controller)
            self._engine.streams.wait()  # so that prefill is not timed as part of the first step
            stats.prefill_s = perf_counter() - begun
            self.jobs.append(job)
            return job

    def run(self, requests: Iterable[Request]) -> list[Generation]:
        """Run requests to their ends, as many at a time as there are rows; the results in order."""
        waiting, jobs = deque(requests), []
        while waiting or self.jobs:
            while waiting and len(self.jobs) < len(self._machine.rows):
                jobs.append(self.start(waiting.popleft()))
            self.step()
        self._check_not_superseded()
        return [job.result for job in jobs if job.result]

    def _work(self, job: Job, draft: Sequence[int] | Mapping[Job, Sequence[int]]) -> Work:
        """What a job wants of the next step."""
        request, forced = job.request, draft.get(job, ()) if isinstance(draft, Mapping) else draft
        tokens = self._machine.forced(request, forced)
        read = request.logprobs is not None
        if not job.row.draftable and not tokens:
            return Work(job.row, request.plain_rule, 0, results=read)
        return Work(job.row, request.rule, request.draft_length, tokens, results=read)

    def _free(self, request: Request) -> Row:
        """A row that nobody uses; with `reuse`, the one that holds most of the prompt."""
        used = {job.row for job in self.jobs}
        free = [row for row in self._machine.rows if row not in used]
        if not free:
            rows = len(self._machine.rows)
            raise ConfigError(
                f"all {rows} rows of this engine are taken; step until a job ends, cancel one"
                f"{f', or compile with --batch {rows + 1}' if rows < MAX_BATCH else ''}"
            )
        return max(free, key=lambda row: row.common(request.prompt)) if request.reuse else free[0]

    def _check_not_superseded(self) -> None:
        if self._superseded:
            raise EngineError(
                f"this {self._kind} was ended by a later call on its engine in the same thread; "
                "read it to its end first"
            )

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One method at a time, while the session is open."""
        with self._alone:
            self._check_not_superseded()
            if self._closed:
                raise EngineError(f"this {self._kind} is closed; open another")
            self._engine.turns.move()
            with self._engine.streams.current():
                yield
