"""The runtime over fake programs: state, prefill, steps, stops, truncation, statistics, threads, interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.fake_engine import FakePrograms, fake_engine
from helpers.toy_law import VOCAB, expected, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError, EngineError
from specc.runtime import Engine, Generation
from specc.runtime.flight import Work
from specc.runtime.request import Request

PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
SHAPES = st.fixed_dictionaries(
    {
        "depth": st.integers(1, 6),
        "chunk": st.sampled_from([1, 2, 8, 64]),
        "batch": st.integers(1, 2),
        "context": st.sampled_from([41, 60, 200]),
        "drafter_kind": st.sampled_from(["model", "ngram"]),
    }
)


def check_stats(result: Generation) -> None:
    stats = result.stats
    assert stats.tokens == len(result.token_ids)
    assert sum(stats.drafted_per_position) == stats.drafted >= stats.accepted == sum(stats.accepted_per_position)
    assert stats.steps <= stats.tokens <= stats.steps + stats.accepted
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)


@settings(deadline=None, max_examples=150)
@given(SHAPES, PROMPTS, st.integers(1, 70), st.lists(st.integers(0, VOCAB - 1), max_size=3), st.data())
def test_text_is_the_targets(shape: Any, prompt: list[int], new: int, eos: list[int], data: st.DataObject) -> None:
    engine, _ = fake_engine(**shape)
    for _ in range(2):  # nothing of the first is left in the second
        length = data.draw(st.integers(0, shape["depth"]))
        result = engine.generate(prompt, max_new_tokens=new, eos_token_id=eos, draft_length=length)
        assert (result.token_ids, result.finish_reason) == expected(
            prompt, shape["context"], max_new_tokens=new, eos_token_id=eos
        )
        assert engine.token_ids == prompt + result.token_ids
        check_stats(result)


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("depth", [1, 3])
def test_eos_at_every_offset_of_a_block(offset: int, depth: int) -> None:
    engine, _ = fake_engine(depth=depth)
    prompt = next(p for p in ([a, b] for a in range(VOCAB) for b in range(VOCAB)) if len({*toy_text(p, 13)}) == 13)
    text = toy_text(prompt, 13)
    result = engine.generate(prompt, eos_token_id=text[offset])
    assert (result.token_ids, result.finish_reason) == (text[: offset + 1], "stop")


def test_eos_in_the_prompt_does_not_stop() -> None:
    engine, _ = fake_engine()
    missing = next(t for t in range(VOCAB) if t not in toy_text([1, t], 9))
    assert engine.generate([1, missing], max_new_tokens=9, eos_token_id=missing).finish_reason == "length"


def test_last_slot_and_one_token_prompt() -> None:
    engine, _ = fake_engine(context=60)
    result = engine.generate([7], max_new_tokens=1000)
    assert (len(result.token_ids), result.finish_reason) == (59, "context")
    assert engine.generate([7] * 59, max_new_tokens=5).token_ids == toy_text([7] * 59, 1)
    assert engine.generate([7], max_new_tokens=59).finish_reason == "length"


@pytest.mark.parametrize("chunk", [1, 8, 64])
def test_long_prompts_and_texts_cross_buckets(chunk: int) -> None:
    engine, _ = fake_engine(context=400, chunk=chunk)
    prompt = [i * i % VOCAB for i in range(170)]
    result = engine.generate(prompt, max_new_tokens=1000)
    assert (result.token_ids, result.finish_reason) == (toy_text(prompt, 230), "context")


def test_sampled_text_is_the_same_for_every_draft_length() -> None:
    engine, _ = fake_engine(depth=4)
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 9}
    for length in range(5):
        result = engine.generate([3, 1], draft_length=length, **options)
        assert result.token_ids == toy_text([3, 1], 20, **options) != toy_text([3, 1], 20)
        assert result.seed == 9
    free = engine.generate([3, 1], max_new_tokens=20, temperature=0.7)
    assert engine.generate([3, 1], max_new_tokens=20, temperature=0.7, seed=free.seed).token_ids == free.token_ids


@settings(deadline=None, max_examples=100)
@given(SHAPES, PROMPTS, st.lists(st.booleans(), min_size=1, max_size=30))
def test_plain_and_speculative_steps_mix(shape: Any, prompt: list[int], kinds: list[bool]) -> None:
    """The drafter is left behind by plain steps and caught up before the next speculative one."""
    engine, programs = fake_engine(**shape)
    machine, row = engine.machine, engine.machine.rows[0]
    machine.begin(row, Request.make(engine.manifest, prompt, max_new_tokens=1000))
    for speculative in kinds:
        if len(row.ids) >= shape["context"]:
            break
        machine.step([Work(row, "greedy", shape["depth"] if speculative else 0)])
        assert row.target_length == len(row.ids) - 1 == int(machine.state.tensors["target_length"][0])
        if speculative and "drafter_length" in machine.state.tensors:
            assert row.drafter_length == int(machine.state.tensors["drafter_length"][0])
    assert row.ids == prompt + toy_text(prompt, len(row.ids) - len(prompt))
    if shape["drafter_kind"] == "ngram":
        assert "prefill_drafter" not in programs.calls


def test_plain_requests_do_not_run_the_drafter() -> None:
    engine, programs = fake_engine(chunk=8)
    engine.generate(range(30), max_new_tokens=5, draft_length=0)
    assert programs.calls == ["prefill_target"] * 4 + ["plain"] * 5
    programs.calls.clear()
    engine.resume(max_new_tokens=1)
    assert programs.calls == ["prefill_drafter"] * 5 + ["step"]  # 34 tokens to catch up


@settings(deadline=None, max_examples=100)
@given(SHAPES, PROMPTS, st.integers(1, 20), st.data())
def test_truncate_and_go_on(shape: Any, prompt: list[int], new: int, data: st.DataObject) -> None:
    engine, _ = fake_engine(**shape)
    engine.generate(prompt, max_new_tokens=new)
    for _ in range(3):
        keep = data.draw(st.integers(1, len(engine.token_ids)))
        engine.truncate(keep)
        kept = engine.token_ids
        assert len(kept) == keep
        row = engine.machine.rows[0]
        assert row.target_length == keep - 1 >= row.drafter_length
        room = shape["context"] - 1 - keep
        if room < 0:
            with pytest.raises(ConfigError, match="leave no room"):
                engine.resume([])
            continue
        more = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=min(room, 10)))
        length = data.draw(st.integers(0, shape["depth"]))
        result = engine.resume(more, max_new_tokens=new, draft_length=length)
        assert (result.token_ids, result.finish_reason) == expected(kept + more, shape["context"], max_new_tokens=new)
        assert result.stats.prompt_tokens == len(more)


def test_truncate_out_of_range() -> None:
    engine, _ = fake_engine()
    with pytest.raises(ConfigError, match="there is no text yet"):
        engine.truncate(1)
    engine.generate([1, 2], max_new_tokens=3)
    for total in (0, 6):
        with pytest.raises(ConfigError, match="give 1..5"):
            engine.truncate(total)
    for total in ("x", 2.5, None, True, -1):
        with pytest.raises(ConfigError, match="truncate"):
            engine.truncate(total)  # type: ignore[arg-type]
    assert engine.resume(max_new_tokens=2).stats.tokens == 2
    with pytest.raises(ConfigError, match="prompt is empty"):
        fake_engine()[0].resume()


def test_stats() -> None:
    engine, _ = fake_engine(depth=3, context=200)
    stats = engine.generate([1, 2, 3], max_new_tokens=100).stats
    assert stats.steps < 100 and stats.plain_steps == 0
    assert stats.drafted == 3 * stats.steps == 3 * stats.drafted_per_position[0]
    assert stats.block_efficiency == 100 / stats.steps
    assert stats.acceptance_rate == stats.accepted / stats.drafted
    assert stats.prefill_s > 0 and stats.decode_s > 0 and stats.tokens_per_second == 100 / stats.decode_s
    plain = engine.generate([1, 2, 3], max_new_tokens=10, draft_length=0).stats
    assert (plain.steps, plain.plain_steps, plain.drafted, plain.drafted_per_position) == (10, 10, 0, [])
    assert (plain.acceptance_rate, plain.block_efficiency) == (0.0, 1.0)
    short = engine.generate([1, 2, 3], max_new_tokens=50, draft_length=1).stats
    assert short.drafted == short.steps == short.drafted_per_position[0]


@pytest.mark.parametrize("at", range(1, 16))
def test_interrupted_anywhere(at: int) -> None:
    """A Ctrl-C before or after any call leaves an engine that can start anew or go on."""
    for when in (1, 2):
        engine, programs = fake_engine(chunk=4)
        seen: list[int] = []

        def interrupt(name: str, count: int, seen: list[int] = seen, when: int = when) -> None:
            seen.append(count)
            if seen.count(at) == when and len(seen) < 1000:
                seen += [at] * 1000  # once
                raise KeyboardInterrupt

        programs.interrupt = interrupt
        prompt = list(range(10))
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompt, max_new_tokens=40)
        held = engine.token_ids
        assert held == prompt + toy_text(prompt, len(held) - 10)
        assert engine.resume(max_new_tokens=5).token_ids == toy_text(held, 5)
        assert engine.generate([4, 5], max_new_tokens=9).token_ids == toy_text([4, 5], 9)


def test_step_must_emit() -> None:
    engine, _ = fake_engine()
    broken = FakePrograms(engine.manifest).runners()

    def nothing(arguments: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        report, *rest = broken["step"](arguments)
        report[:, -3] = 0
        return [report, *rest]

    engine = Engine(engine.manifest, {**broken, "step": nothing}, None, torch.device("cpu"))
    with pytest.raises(EngineError, match="emitted 0 tokens"):
        engine.generate([1])


def test_without_tokenizer() -> None:
    engine, _ = fake_engine()
    assert engine.generate([1], max_new_tokens=2).text == ""
    assert not engine.has_chat_template
    for call in (
        lambda: engine.generate("a"),
        lambda: engine.stream([1]),
        lambda: engine.chat("a"),
        lambda: engine.decode([1]),
    ):
        with pytest.raises(ConfigError, match="no tokenizer"):
            call()
