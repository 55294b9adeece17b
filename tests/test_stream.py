"""Streams: pieces of a text as they come."""

from __future__ import annotations

import threading

import pytest
from helpers.fake_engine import fake_engine, letters
from helpers.toy_law import toy_text

from specc.errors import ConfigError, EngineError
from specc.runtime import Engine


class TestStream:
    """`Engine.stream`: pieces, their end, and who holds the engine."""

    @pytest.fixture
    def engine(self) -> Engine:
        return fake_engine(text=letters(), context=200)[0]

    def test_pieces_join_to_the_text(self, engine: Engine) -> None:
        stream = engine.stream("ABC", max_new_tokens=50)
        assert stream.result is None
        pieces = list(stream)
        assert stream.result is not None and len(pieces) == stream.result.stats.steps
        assert "".join(pieces) == stream.result.text == engine.decode(toy_text([0, 1, 2], 50))
        assert engine.generate("ABC", max_new_tokens=50).text == stream.result.text
        assert list(stream) == []

    def test_bad_request_fails_at_the_call(self, engine: Engine) -> None:
        with pytest.raises(ConfigError, match="max_new_tokens"):
            engine.stream("A", max_new_tokens=0)
        with pytest.raises(ConfigError, match="empty"):
            engine.stream("")

    def test_closed_early(self, engine: Engine) -> None:
        with engine.stream("ABC") as stream:
            first = next(stream)
        assert stream.result is None
        assert engine.decode(engine.token_ids) == "ABC" + first
        assert engine.generate("A", max_new_tokens=3).token_ids == toy_text([0], 3)

    def test_dropped(self, engine: Engine) -> None:
        next(engine.stream("ABC"))
        done = threading.Thread(target=engine.generate, args=("A",), daemon=True)
        done.start()
        done.join(20)
        assert not done.is_alive()

    def test_later_call_in_the_same_thread_ends_it(self, engine: Engine) -> None:
        """An interrupted loop in a notebook leaves a stream that nobody can close."""
        stream = engine.stream("ABC")
        next(stream)
        assert engine.generate("A", max_new_tokens=3).token_ids == toy_text([0], 3)
        with pytest.raises(EngineError, match="ended by a later call"):
            next(stream)

    def test_other_thread_waits(self, engine: Engine) -> None:
        stream = engine.stream("ABC", max_new_tokens=30)
        pieces = [next(stream)]
        results: list[list[int]] = []
        other = threading.Thread(target=lambda: results.append(engine.generate([5], max_new_tokens=4).token_ids))
        other.start()
        other.join(0.2)
        assert other.is_alive() and not results
        pieces += stream
        other.join(20)
        assert results == [toy_text([5], 4)]
        assert "".join(pieces) == engine.decode(toy_text([0, 1, 2], 30))

    def test_call_from_inside_a_step(self) -> None:
        engine, programs = fake_engine()

        def again(name: str, count: int) -> None:
            if count == 2:
                engine.generate([1])

        programs.interrupt = again
        with pytest.raises(EngineError, match="middle of a step"):
            engine.generate([1])
