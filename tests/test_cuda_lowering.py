"""Steps through Inductor's CUDA lowering, every kernel to machine code; neither a GPU nor its driver is needed, and
nothing runs. `make test-gpu` has a torch that can; the CPU's has no CUDA in it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
# What may be called beside kernels of Inductor's: products, the sums of token counts, the best of a row.
LIBRARY = {"aten.mm.out", "aten.bmm.out", "aten.addmm.out", "aten.scatter_.src", "aten.topk.default"}

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None, reason=f"torch {torch.__version__} was built without CUDA"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
]


@pytest.mark.parametrize(
    ("rule", "widths", "capability"),
    [("greedy", "1,1,1", 90), ("greedy", "0", 80), ("coupled", "3,1", 80), ("rejection", "1,1", 90)],
    ids=["chain", "plain", "coupled tree", "rejection"],
)
def test_every_kernel_compiles(rule: str, widths: str, capability: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "helpers.lower_for_cuda", rule, widths, str(capability)]
    apart = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=TESTS, env={**os.environ, **apart}, capture_output=True, text=True, timeout=600, check=False
    )
    if "private names of torch have moved" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["kernels"] > 20 and found["called"].keys() <= LIBRARY
