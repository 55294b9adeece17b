"""Recorded calls and steps that run ahead: the text is what calls one after the other give. CUDA itself is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_engine import FakePrograms, fake_engine, letters, toy_manifest
from helpers.replay import ContractError, Rerun, StaticReplay
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError
from specc.manifest import EngineManifest
from specc.runtime import Engine, load
from specc.runtime.bucket import recorded_sizes
from specc.runtime.recorded import Recorded
from specc.runtime.session import Job
from specc.verifier import verify

REQUESTS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.0, "seed": 4, "acceptance": "rejection"},
    {"draft_length": 0},
    {"draft_length": 1, "repetition_penalty": 1.3},
    {"logprobs": 2},
    {"eos_token_id": (5, 9)},
    {"stop": "H"},
    {"logit_bias": {3: 2.0}},
]


def recorded_engine(**changes: Any) -> tuple[Engine, FakePrograms, Rerun]:
    manifest, recorder = toy_manifest(**changes), Rerun()
    programs = FakePrograms(manifest)
    runners = programs.runners()
    return Engine(manifest, runners, letters(), torch.device("cpu"), recorder=recorder), programs, recorder


def key(result: Any) -> tuple[Any, ...]:
    return result.token_ids, result.finish_reason, result.logprobs, result.stats.accepted_per_position


class TestBuckets:
    """Which sizes are recorded, and in what order."""

    def test_sizes(self) -> None:
        assert recorded_sizes(2113) == (256, 512, 1024, 2048, 2112)
        assert recorded_sizes(257) == (256,) and recorded_sizes(258) == (256, 257)
        assert recorded_sizes(70) == (69,)

    @given(slots=st.integers(3, 100_000), length=st.integers(0, 100_000))
    def test_every_length_has_one(self, slots: int, length: int) -> None:
        sizes = recorded_sizes(slots)
        assert list(sizes) == sorted(set(sizes)) and sizes[-1] == slots - 1
        if length < slots:
            least = next(size for size in sizes if size >= length)
            assert least <= max(256, 2 * length)

    def test_the_engine_takes_the_least(self) -> None:
        engine, programs, _ = recorded_engine(context=600)
        programs.buckets.clear()
        engine.generate([1] * 250, max_new_tokens=12)
        assert programs.buckets[0] == 256 and programs.buckets[-1] == 512

    def test_recorded_at_load_largest_first(self) -> None:
        _, programs, recorder = recorded_engine(context=600, batch=2)
        steps = [spec for spec in programs.manifest.programs.values() if spec.rule]
        calls = sum(2 if spec.batch == 1 else 1 for spec in steps)  # of all rows, and of each alone
        assert recorder.recorded == calls * 3  # 256, 512, all
        assert programs.buckets == sorted(programs.buckets, reverse=True)


class TestOneRecording:
    """Each call is recorded once for a bucket, and replayed."""

    def test_replays(self) -> None:
        counter = torch.zeros(1, dtype=torch.int64)

        def call(bucket: torch.Tensor) -> dict[str, torch.Tensor]:
            counter.add_(len(bucket))
            return {"out": counter * 10}

        recorded = Recorded(call, StaticReplay(), {})
        recorded.record(torch.zeros(2))
        assert recorded.holds(2) and not recorded.holds(3)
        first = recorded(torch.zeros(2))["out"]
        before, held = int(counter), first.data_ptr()
        again = recorded(torch.zeros(2))["out"]
        assert int(counter) == before + 2 and int(again) == 10 * int(counter)
        assert again.data_ptr() == held  # overwritten, not replaced

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            (lambda x: {"out": x * x.sum().item()}, "brings a number to the host"),
            (lambda x: {"out": x + torch.rand(2)}, "draws from a generator"),
            (lambda x: {"out": x + torch.tensor([1.0, 2.0])}, "made of numbers in Python"),
        ],
    )
    def test_the_stand_in_refuses_what_graphs_cannot_carry(self, call: Any, reason: str) -> None:
        with pytest.raises(ContractError, match=reason):
            Recorded(call, StaticReplay(), {}).record(torch.zeros(2))

    def test_what_one_allocates_another_uses(self) -> None:
        """So results are kept apart: as a tensor of the recording they would be lost."""
        stand_in, kept = StaticReplay(), []

        def call(x: torch.Tensor) -> dict[str, torch.Tensor]:
            kept.append(x + 1)
            return {"out": kept[-1]}

        recorded = Recorded(call, stand_in, {})
        recorded.record(torch.ones(2))
        assert recorded(torch.ones(2))["out"].tolist() == [2.0, 2.0] and kept[-1].tolist() == [0.0, 0.0]

    def test_the_stand_in_forgets_python(self) -> None:
        """A number of Python's that changes is not seen: what the step reads must be in tensors."""
        numbers = iter([1.0, 2.0, 3.0, 4.0, 5.0])
        recorded = Recorded(lambda x: {"out": x * 0 + next(numbers)}, StaticReplay(), {})
        recorded.record(torch.ones(1))
        assert recorded(torch.ones(1))["out"].item() == recorded(torch.ones(1))["out"].item() == 3.0


class TestAhead:
    """Steps begun before the last one was read."""

    @pytest.mark.parametrize("options", REQUESTS, ids=lambda options: next(iter(options), "greedy"))
    def test_the_text_is_the_same(self, options: dict[str, Any]) -> None:
        rules = ("coupled", "rejection")
        plain, _ = fake_engine(letters(), rules=rules)
        engine, _, recorder = recorded_engine(rules=rules)
        for prompt in ([1, 2, 3], [7] * 12):
            asked = {"max_new_tokens": 30, **options}
            assert key(engine.generate(prompt, **asked)) == key(plain.generate(prompt, **asked))
        assert recorder.most == (1 if "logprobs" in options else 2)

    @pytest.mark.parametrize("depth", [0, 3])
    def test_no_step_is_made_in_vain(self, depth: int) -> None:
        """As many calls as without running ahead: none behind the limit, none for texts of one token."""
        plain, one = fake_engine()
        engine, other, recorder = recorded_engine()
        other.calls.clear()
        for each in (plain, engine):
            each.generate([1, 2, 3], max_new_tokens=40, draft_length=depth)
            for _ in range(5):
                each.generate([1, 2, 3], max_new_tokens=1, draft_length=depth)
            for _ in range(5):
                each.step(draft_length=depth)
        steps = [[name for name in programs.calls if "prefill" not in name] for programs in (one, other)]
        assert steps[0] == steps[1] and recorder.most == 2

    def test_forced_drafts_are_not_run_ahead(self) -> None:
        plain, _ = fake_engine()
        engine, _, _ = recorded_engine()
        texts = []
        for each in (plain, engine):
            each.generate([1, 2, 3], max_new_tokens=10)
            texts.append([each.step(draft).token_ids for draft in ([4, 4], (), (), (), [9], ())])
        assert texts[0] == texts[1]

    def test_an_interrupted_step_is_not_continued(self) -> None:
        """What ran ahead of a step whose result was lost would skip its tokens."""
        plain, _ = fake_engine()
        whole = plain.generate([1, 2, 3], max_new_tokens=40).token_ids
        engine, programs, recorder = recorded_engine()
        fetch = recorder.fetch

        def lost() -> list[list[int]]:
            raise KeyboardInterrupt

        interrupts = 0
        with engine.session() as session:
            job = session.add([1, 2, 3], max_new_tokens=40)
            for _ in range(4):
                session.step()
            recorder.fetch = lambda tensor: lost  # type: ignore[method-assign]
            while not interrupts:  # the call that is under way is read first
                try:
                    session.step()
                except KeyboardInterrupt:
                    interrupts += 1
            recorder.fetch = fetch  # type: ignore[method-assign]
            while job.result is None:
                session.step()
        assert job.result.token_ids == whole

    def test_an_interrupt_while_a_text_takes_its_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The row has gone on and the text has not: what ran ahead stands further than either."""
        plain, _ = fake_engine()
        whole = plain.generate([1, 2, 3], max_new_tokens=40).token_ids
        engine, _, recorder = recorded_engine()
        take, interrupts = Job.take, 0

        def interrupted(job: Job, *given: Any, **named: Any) -> None:
            nonlocal interrupts
            if recorder.most == 2 and not interrupts:
                interrupts += 1
                raise KeyboardInterrupt
            take(job, *given, **named)

        monkeypatch.setattr(Job, "take", interrupted)
        with engine.session() as session:
            job = session.add([1, 2, 3], max_new_tokens=40)
            while job.result is None:
                try:
                    session.step()
                except KeyboardInterrupt:
                    assert interrupts == 1
        assert job.result.token_ids == whole and interrupts == 1

    def test_a_text_of_the_same_length_in_the_same_row(self) -> None:
        """Rows, lengths and drafts are as they were; the text is another."""
        plain, _ = fake_engine()
        engine, _, recorder = recorded_engine()
        with engine.session() as session:
            first = session.add([1, 2, 3], max_new_tokens=40, draft_length=0)
            for _ in range(4):
                session.step()
            assert recorder.most == 2
            total = len(first.row.ids)
            session.cancel(first)
            prompt = [7, 5, *[9] * (total - 2)]
            second = session.add(prompt, max_new_tokens=10, draft_length=0)
            while second.result is None:
                session.step()
        assert second.result.token_ids == plain.generate(prompt, max_new_tokens=10, draft_length=0).token_ids

    @pytest.mark.parametrize("forced", [False, True])
    def test_programs_that_are_called_twice_in_a_step(self, forced: bool) -> None:
        """Each overwrites what it returned before: log-probabilities are of a row's own call."""
        rules = ("coupled", "rejection")
        alone, _ = fake_engine(letters(), rules=rules)
        engine, _, _ = recorded_engine(batch=4, rules=rules)
        kinds: list[dict[str, Any]] = [{}, {}, {}, {}]
        if not forced:
            kinds = [{"temperature": 1.0, "seed": 3, "acceptance": rule} for rule in ("rejection", "coupled") * 2]
        asked = [{"max_new_tokens": 12, "logprobs": 1, "draft_length": 2, **kind} for kind in kinds]
        with engine.session() as session:
            jobs = [session.add([place, 4], **options) for place, options in enumerate(asked)]
            while session.jobs:
                drafts = {job: [3, 3] for job in session.jobs if job in jobs[:2]} if forced else {}
                session.step(drafts)
        for place, (job, options) in enumerate(zip(jobs, asked, strict=True)):
            expected = alone.generate([place, 4], **options)
            assert (
                job.result and job.result.logprobs == expected.logprobs and job.result.token_ids == expected.token_ids
            )

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_rows_that_come_and_go(self, data: st.DataObject) -> None:
        """Whatever joins, leaves, is cancelled or goes on: every text is what it is alone."""
        alone, _ = fake_engine(letters(), rules=("coupled", "rejection"))
        engine, _, _ = recorded_engine(batch=3, rules=("coupled", "rejection"))
        jobs = []
        with engine.session() as session:
            for _ in range(data.draw(st.integers(4, 24))):
                act = data.draw(st.sampled_from(["add", "step", "step", "step", "cancel"]))
                if act == "add" and len(session.jobs) < 3:
                    prompt = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=12))
                    options = data.draw(st.sampled_from(REQUESTS)) | {"max_new_tokens": data.draw(st.integers(1, 25))}
                    jobs.append((session.add(prompt, **options), prompt, options))
                elif act == "cancel" and session.jobs:
                    session.cancel(data.draw(st.sampled_from(session.jobs)))
                elif session.jobs:
                    forced = data.draw(st.sampled_from([{}, {session.jobs[0]: [4, 9]}]))
                    session.step(forced if session.jobs[0].request.draft_length >= 2 else {})
            while session.jobs:
                session.step()
        for job, prompt, options in jobs:
            assert job.result
            expected, found = alone.generate(prompt, **options), job.result
            count = len(found.token_ids) if found.finish_reason == "cancelled" else None
            assert found.token_ids == expected.token_ids[:count]
            assert found.logprobs == (expected.logprobs and expected.logprobs[:count])
            assert count is not None or found.finish_reason == expected.finish_reason


@pytest.fixture(scope="module")
def replayed(tiny_engine: Path) -> tuple[Engine, StaticReplay]:
    return replaying(tiny_engine)


class TestEngines:
    """Real programs, on the eager back end: each step is one static piece of work."""

    @pytest.mark.parametrize("options", REQUESTS[:6], ids=lambda options: next(iter(options), "greedy"))
    def test_replay_is_the_engine(
        self, tiny_engine: Path, options: dict[str, Any], replayed: tuple[Engine, StaticReplay]
    ) -> None:
        engine, recorder = replayed
        plain = load(tiny_engine)
        for prompt in ([1, 2, 3], [5, 4] * 9):
            asked = {"max_new_tokens": 24, "eos_token_id": (), **options}
            assert key(engine.generate(prompt, **asked)) == key(plain.generate(prompt, **asked))
        steps = [step for step in engine.machine.programs.steps]
        assert len(recorder.recordings) == len(steps) * len(recorded_sizes(engine.manifest.slots))

    def test_rows(self, batch_engine: Path) -> None:
        engine, _ = replaying(batch_engine)
        prompts = [[1, 2, 3], [4] * 20, [9, 8]]
        together = engine.generate(prompts, max_new_tokens=20, eos_token_id=())
        one = load(batch_engine)
        assert [r.token_ids for r in together] == [
            one.generate(prompt, max_new_tokens=20, eos_token_id=()).token_ids for prompt in prompts
        ]


def replaying(folder: Path) -> tuple[Engine, StaticReplay]:
    """An engine on the CPU whose steps are recorded and replayed."""
    manifest, recorder = EngineManifest.read(folder), StaticReplay()
    once = load(folder)
    runners = {name: call.runner for (name, _), call in once.machine.state._calls.items()}
    return Engine(manifest, runners, once.text, torch.device("cpu"), recorder=recorder), recorder


def test_graphs_are_for_a_gpu(tiny_engine: Path) -> None:
    for value, message in ((True, "runs on cpu, and graphs are CUDA's"), ("yes", "must be True, False or None")):
        with pytest.raises(ConfigError, match=message):
            load(tiny_engine, graphs=value)  # type: ignore[arg-type]
    assert load(tiny_engine, graphs=False).machine.state.recorder is None


class TestVerify:
    """`specc verify` sees the steps that are begun ahead: those that nobody reads."""

    def test_right(self) -> None:
        (check,) = verify(recorded_engine(batch=3)[0], quick=True, only=("begun ahead",)).checks
        assert check.result == "pass" and int(check.compared.split()[0]) > 200

    def test_a_step_taken_too_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Planted: what is read of a step is the one before it, now and then."""
        engine, _, recorder = recorded_engine()
        fetch, reports = recorder.fetch, []

        def late(tensor: torch.Tensor) -> Any:
            reports.append(fetch(tensor))
            return reports[-1] if len(reports) < 9 else lambda: reports[-2]()

        monkeypatch.setattr(recorder, "fetch", late)
        (check,) = verify(engine, quick=True, only=("begun ahead",)).checks
        assert check.result == "fail" and check.faults

    def test_not_where_nothing_is(self) -> None:
        (check,) = verify(fake_engine(letters())[0], quick=True, only=("begun ahead",)).checks
        assert check.result == "skip" and "on cpu" in check.compared
