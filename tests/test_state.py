"""The state of an engine: buffers, and the check of what is passed."""

from __future__ import annotations

import pytest
import torch
from helpers.fake_engine import FakePrograms, fake_engine, toy_manifest

from specc.errors import EngineError, EngineFormatError
from specc.runtime import Engine
from specc.runtime.state import State


class TestState:
    """Buffers, and the check of what is passed."""

    def test_bucket(self) -> None:
        state = State(toy_manifest(context=200, chunk=8), torch.device("cpu"))  # 209 slots
        sizes = [len(state.bucket(n)) for n in (0, 1, 64, 65, 192, 193, 208)]
        assert sizes == [64, 64, 64, 128, 192, 208, 208]
        small = State(toy_manifest(context=10, chunk=1, depth=1), torch.device("cpu"))
        assert len(small.bucket(0)) == 12

    def test_strided_views_are_refused(self) -> None:
        engine, _ = fake_engine(batch=2)
        engine.machine.state.tensors["target_length"] = torch.zeros(4, dtype=torch.int64)[::2]
        with pytest.raises(EngineError, match=r"input target_length: found torch.int64 \(2,\) with strides \(2,\)"):
            engine.machine.state.call("plain_b2", 0)

    def test_wrong_call_tensors_are_refused(self) -> None:
        state = fake_engine(chunk=8)[0].machine.state
        start = torch.tensor([0])
        for tokens in (torch.zeros(1, 7, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int32)):
            with pytest.raises(
                EngineError, match=r"prefill_target, input tokens: .* expected contiguous torch.int64 \(1, 8\)"
            ):
                state.call("prefill_target", 0, 0, tokens=tokens, start=start)

    def test_caches_keep_their_address_and_are_cleared(self) -> None:
        engine, _ = fake_engine()
        before = {n: t.data_ptr() for n, t in engine.machine.state.tensors.items() if t.ndim == 4}
        engine.generate([1, 2, 3], max_new_tokens=1000)
        caches = {n: engine.machine.state.tensors[n] for n in before}
        assert before == {n: t.data_ptr() for n, t in caches.items()}
        for cache in caches.values():
            cache[:, :, :5] = float("nan")
        engine.machine.rows[0].keep(0)
        assert all(not cache.any() for cache in caches.values())
        assert not engine.machine.state.tensors["history"].any()

    def test_caches_too_small(self) -> None:
        """Native code does not check where it writes."""
        manifest = toy_manifest(context=60, chunk=8, slots=67)
        with pytest.raises(EngineFormatError, match="do not fit a context of 60 with 8 slots"):
            Engine(manifest, {}, None, torch.device("cpu"))

    def test_program_with_an_unknown_tensor(self) -> None:
        manifest = toy_manifest()
        fewer = toy_manifest(tensors=tuple(t for t in manifest.tensors if t.name != "limit"))
        with pytest.raises(EngineFormatError, match="reads limit"):
            Engine(fewer, FakePrograms(fewer).runners(), None, torch.device("cpu"))
