"""On the CPU a row's numbers do not depend on what is computed beside it: drafting changes no bit of a logit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.by_hand import hand, op

from specc.lower.aotinductor import lower
from specc.program import Level

if not shutil.which("g++"):
    pytest.skip("no C++ compiler", allow_module_level=True)

CODE = """
import json, specc, sys
engine = specc.load(sys.argv[1], threads=int(sys.argv[2]))
prompt = [(7 * i * i + 3 * i) % 120 + 4 for i in range(int(sys.argv[3]))]
options = dict(max_new_tokens=90, eos_token_id=(), logprobs=2, **json.loads(sys.argv[4]))
found = []
for draft in json.loads(sys.argv[5]):
    result = engine.generate(prompt, draft_length=draft, **options)
    assert draft == 0 or result.stats.accepted > 0
    found.append([[entry.logprob.hex(), *(value.hex() for value in entry.top.values())] for entry in result.logprobs])
print(json.dumps(found))
"""


def logprobs(engine: Path, threads: int, length: int, options: dict[str, Any], drafts: tuple[int, ...]) -> list[Any]:
    """The log-probabilities of a text, to the last bit, for each draft length."""
    given = str(threads), str(length), json.dumps(options), json.dumps(drafts)
    command = [sys.executable, "-P", "-c", CODE, str(engine), *given]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", ({}, {"temperature": 0.9, "seed": 4}), ids=("greedy", "coupled"))
def test_drafting_changes_no_bit(inductor_engine: Path, options: dict[str, Any]) -> None:
    """Of the logits that plain steps see; whatever the number of threads."""
    plain, drafting = logprobs(inductor_engine, 2, 21, options, (0, 3))
    assert len(plain) == 90 and plain == drafting
    for threads in (1, 5):
        assert logprobs(inductor_engine, threads, 21, options, (3,)) == [plain]


def test_small_sums_have_one_order_and_large_ones_all_threads(tmp_path: Path) -> None:
    """The mean of a row, alone and beside others, with any number of threads: as a norm takes it. A sum over a
    vocabulary is split, also where one thread compiles, as workers do."""
    rows = torch.randn(3, 600, generator=torch.Generator().manual_seed(0)) * 3
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            program = hand(Level.ENGINE)
            x, large = (program.input(name, (1, count, n), torch.float32) for name, n in (("x", 600), ("y", 50_000)))
            squares = op(program, torch.ops.aten.pow.Tensor_Scalar, x, 2)
            mean = op(program, torch.ops.aten.mean.dim, squares, [-1], True)
            program.give(mean=mean, sum=op(program, torch.ops.aten.sum.dim_IntList, large, [-1]))
            path = tmp_path / f"{count}.pt2"
            lower(program, path)
            assert loops(path) == 1
            package = torch._inductor.aoti_load_package(str(path))
            for number in (1, 2, 3):
                torch.set_num_threads(number)
                mean, _ = package(rows[None, :count].contiguous(), torch.ones(1, count, 50_000))
                found.append(float(mean[0, 0, 0]))
    finally:
        torch.set_num_threads(threads)
    assert len(set(found)) == 1


def loops(package: Path) -> int:
    """Places at which the code of a package starts its threads."""
    with zipfile.ZipFile(package) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".kernel.cpp"))
        return file.read(name).count(b"#pragma omp parallel")
