"""CUDA graphs: what a step launches, captured once and replayed with one call. `tests/test_gpu.py` runs it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor

from ..errors import EngineError

WARM_UPS = 2  # libraries choose kernels and allocate workspaces in their first calls, which cannot be captured


class CudaGraphs:
    """A recorder for one CUDA device, used on the engine's own stream.

    All graphs share a memory pool, whose blocks the largest bucket, captured first, sizes for the others. So what one
    allocates is lost when another is replayed: results are copied to tensors outside the pool (`Recorded`).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream(device)
        self._hosts: dict[tuple[torch.Size, torch.dtype], cycle[tuple[Tensor, torch.cuda.Event]]] = {}

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        """As `Recorder.record`: warm-ups on a stream of its own, as capture wants, then one captured call.

        Raises:
            EngineError: the call does something that cannot be captured, or there is no memory left for it.
        """
        here, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                self._stream.wait_stream(here)
                for _ in range(WARM_UPS):
                    call()
                self._stream.synchronize()
                # Other threads may allocate meanwhile, of other engines for instance.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    call()
        except RuntimeError as e:
            raise EngineError(
                f"a program could not be captured as a CUDA graph ({e}); load(..., graphs=False) runs it without"
            ) from e
        here.wait_stream(self._stream)
        return graph.replay

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """As `Recorder.fetch`: one asynchronous copy to pinned memory, and an event behind it."""
        key = tensor.shape, tensor.dtype
        if key not in self._hosts:
            pairs = [(torch.empty_like(tensor, device="cpu", pin_memory=True), torch.cuda.Event()) for _ in range(2)]
            self._hosts[key] = cycle(pairs)
        host, copied = next(self._hosts[key])
        host.copy_(tensor, non_blocking=True)
        copied.record(torch.cuda.current_stream(self.device))

        def wait() -> list[list[int]]:
            copied.synchronize()
            numbers: list[list[int]] = host.tolist()
            return numbers

        return wait
