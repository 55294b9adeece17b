"""Threads and an engine: they take turns, or share a session."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
import torch
from helpers.fake_engine import fake_engine
from helpers.toy_law import toy_text

from specc.errors import ConfigError, EngineError
from specc.runtime import Session


def test_threads_take_turns() -> None:
    engine, _ = fake_engine(context=200)
    results: dict[int, list[list[int]]] = {}

    def work(i: int) -> None:
        results[i] = [engine.generate([i, 3], max_new_tokens=100).token_ids for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: [toy_text([i, 3], 100)] * 5 for i in range(4)}


def test_a_thread_that_got_the_number_of_another_waits() -> None:
    """Numbers of threads that have ended are used again, here at once: a session must not be ended for that."""
    engine, _ = fake_engine(context=200)
    session = engine.session()
    job = session.add([1, 3], max_new_tokens=6)
    first = threading.Thread(target=session.step)
    first.start()
    first.join()
    other = threading.Thread(target=engine.generate, args=([7],))
    other.start()
    time.sleep(0.05)
    while job.result is None:
        session.step()
    session.close()
    other.join(60)
    assert job.token_ids == toy_text([1, 3], 6) and not other.is_alive()


def test_a_call_in_the_middle_of_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a signal handler: it would wait for itself."""
    engine, _ = fake_engine(context=200)
    engine.generate([1], max_new_tokens=3)
    monkeypatch.setattr(engine.machine.last, "truncate", lambda total: engine.truncate(total))
    with pytest.raises(EngineError, match="in the middle of a call of this thread"):
        engine.truncate(2)


def test_the_thread_that_opened_a_session_ends_it_whoever_stepped_it() -> None:
    engine, _ = fake_engine(context=200)
    session = engine.session()
    session.add([1], max_new_tokens=20)
    other = threading.Thread(target=session.step)
    other.start()
    other.join()
    assert engine.generate([2], max_new_tokens=4).token_ids == toy_text([2], 4)
    with pytest.raises(EngineError, match="ended by a later call"):
        session.step()


def test_a_superseded_loop_says_so() -> None:
    engine, _ = fake_engine(batch=3)
    session = engine.session()
    session.add([1], max_new_tokens=20)
    with pytest.raises(EngineError, match="this session was ended by a later call"):
        for _ in session:
            engine.generate([5], max_new_tokens=2)
    turns, right = iter([False, True]), Session.step

    def interrupted(self: Session, *draft: Any) -> Any:
        jobs = right(self, *draft)
        if next(turns, False):
            engine.generate([5], max_new_tokens=2)  # a signal handler, between two steps
        return jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "step", interrupted)
        with pytest.raises(EngineError, match="this generation was ended by a later call"):
            engine.generate([1, 2], max_new_tokens=20)


@pytest.mark.parametrize("where", range(10))
def test_an_interrupt_anywhere_in_the_lock_leaves_the_engine_free(where: int) -> None:
    """Between any two lines of `Alone`, on the way in and out of a step."""
    engine, _ = fake_engine(context=200)
    lines = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_globals.get("__name__") != "specc.runtime.turn" or frame.f_code.co_qualname.split(".")[0] != "Alone":
            return None

        def line(frame: Any, event: str, _: object) -> Any:
            nonlocal lines
            if event == "line":
                lines += 1
                if lines == where + 1:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return line

        return line

    with pytest.raises(KeyboardInterrupt), engine.session() as session:
        session.add([1], max_new_tokens=20)
        sys.settrace(trace)
        try:
            session.step()
        finally:
            sys.settrace(None)
    found: list[list[int]] = []
    other = threading.Thread(target=lambda: found.append(engine.generate([2], max_new_tokens=4).token_ids), daemon=True)
    other.start()
    other.join(10)
    assert found == [toy_text([2], 4)] and lines == where + 1


def test_threads_share_a_session() -> None:
    """A server's requests join from their own threads while one thread steps; others wait for the engine."""
    engine, _ = fake_engine(batch=3, context=200)
    results: dict[int, list[int]] = {}
    done = threading.Event()
    failed: list[BaseException] = []

    def ask(i: int, session: Session) -> None:
        try:
            for _ in range(4):
                job = None
                while job is None:
                    try:
                        job = session.add([i, 3], max_new_tokens=30)
                    except ConfigError as e:
                        assert "rows of this engine are taken" in str(e)
                        time.sleep(0.001)
                while job.result is None:
                    time.sleep(0.001)
                results[i] = job.token_ids
        except BaseException as e:
            failed.append(e)

    def serve(session: Session) -> None:
        while not done.is_set():
            session.step()

    with engine.session() as session:
        server = threading.Thread(target=serve, args=(session,))
        waiting = threading.Thread(target=lambda: results.update({99: engine.generate([7]).token_ids}))
        threads = [threading.Thread(target=ask, args=(i, session)) for i in range(5)]
        for thread in (server, waiting, *threads):
            thread.start()
        for thread in threads:
            thread.join(60)
        assert 99 not in results
        done.set()
        server.join(60)
    waiting.join(60)
    assert not failed and sorted(results) == [0, 1, 2, 3, 4, 99]
    assert all(results[i] == toy_text([i, 3], 30) for i in range(5))


def test_a_session_closes_after_the_step_of_another_thread() -> None:
    """Else that step and the next generation would write the same state."""
    engine, programs = fake_engine(context=200)
    inside, on = threading.Event(), threading.Event()

    def wait(name: str, count: int) -> None:
        if name == "step" and not on.is_set():
            inside.set()
            assert on.wait(20)

    programs.interrupt = wait
    session = engine.session()
    job = session.add([1], max_new_tokens=100)
    server = threading.Thread(target=session.step)
    server.start()
    assert inside.wait(20)
    closing = threading.Thread(target=session.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive() and not engine.turns.free and job.token_ids == []
    on.set()
    server.join(20), closing.join(20)
    assert engine.turns.free and job.token_ids == toy_text([1], len(job.token_ids)) != []


def test_a_session_that_has_ended_does_not_end_another() -> None:
    """The holder is who last used the session that holds the engine, not one that was closed."""
    engine, _ = fake_engine(context=200)
    old = engine.session()
    old.close()
    held: list[Session] = []
    other = threading.Thread(target=lambda: held.append(engine.session()))
    other.start()
    other.join(20)
    with pytest.raises(EngineError, match="closed"):
        old.step()
    joined: list[Any] = []

    def later() -> None:
        time.sleep(0.2)
        joined.append(held[0].add([2]))
        held[0].close()

    closing = threading.Thread(target=later)
    closing.start()
    engine.generate([1], max_new_tokens=2)  # waits, and does not take the engine from the other thread
    closing.join(20)
    assert joined


def test_calibration_uses_the_threads_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    before = torch.get_num_threads()
    monkeypatch.setattr("specc.runtime.engine.time_programs", lambda *given: {"threads": torch.get_num_threads()})
    try:
        engine.threads = before + 1
        engine.calibrate()
        assert engine.manifest.cost["threads"] == before + 1
    finally:
        torch.set_num_threads(before)
