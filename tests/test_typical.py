"""Typical acceptance: the rule against a plain loop, and that nobody gets it unasked or unsaid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints
from helpers.models import save_tiny, tiny_model

import specc
from specc.config import CompileConfig
from specc.console import SteadyConsole
from specc.errors import ConfigError
from specc.inspect import inspect
from specc.passes.accept.typical import accept
from specc.tree import DraftTree
from specc.verifier import verify
from specc.verifier.show import show

TREE = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0, 0)])
PROMPT = [1, 40, 50, 60, 70, 33, 90]


def reference(laws: torch.Tensor, tokens: list[int], valid: list[bool]) -> int:
    """The node at which one row ends, node by node in Python."""
    reached, best = {0: 0.0}, (0, 0.0, 0)
    for node in range(1, len(TREE)):
        parent = TREE.parents[node]
        law = laws[parent].tolist()
        entropy = -math.fsum(x * math.log(x) for x in law if x > 0)
        chance = law[tokens[node]]
        if parent in reached and valid[node] and chance > min(0.09, 0.3 * math.exp(-entropy)):
            reached[node] = reached[parent] + math.log(chance)
            best = max(best, (TREE.depths[node], reached[node], -node))
    return -best[2]


def test_the_rule_equals_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, size = 200, 6
    processed = torch.randn(rows, len(TREE), size, generator=generator) * 2
    processed = torch.where(torch.rand(processed.shape, generator=generator) < 0.2, float("-inf"), processed)
    processed[..., 0] = 0.0
    tokens = torch.randint(0, size, (rows, len(TREE)), generator=generator)
    valid = torch.rand(tokens.shape, generator=generator) < 0.9
    parents, depths = torch.tensor([TREE.parents]), torch.tensor([TREE.depths])
    ends = accept(processed, tokens, parents, depths, valid, depth=TREE.depth)[:, 0].tolist()
    laws = processed.softmax(-1)
    assert ends == [reference(laws[row], tokens[row].tolist(), valid[row].tolist()) for row in range(rows)]
    assert set(ends) == set(range(len(TREE)))


def test_every_token_of_a_flat_law_passes_and_the_likeliest_path_is_taken() -> None:
    """p = .4, .3, .2, .1 has an entropy of 1.28, so the border is .0834."""
    law = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]]).log().expand(1, 3, -1)
    tree = DraftTree.from_widths((2,))
    fixed = [torch.tensor([tree.parents]), torch.tensor([tree.depths]), torch.ones(1, 3, dtype=torch.bool)]
    assert accept(law, torch.tensor([[0, 3, 3]]), *fixed, depth=1).tolist() == [[1]]
    assert accept(law, torch.tensor([[0, 3, 2]]), *fixed, depth=1).tolist() == [[2]]


def test_a_row_of_one_token_is_greedy() -> None:
    law = torch.full((1, 2, 4), float("-inf"))
    law[..., 2] = 0.0
    fixed = [torch.tensor([[0, 0]]), torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)]
    assert accept(law, torch.tensor([[0, 2]]), *fixed, depth=1).tolist() == [[1]]
    assert accept(law, torch.tensor([[0, 1]]), *fixed, depth=1).tolist() == [[0]]


def config(drafter: str, acceptance: str) -> CompileConfig:
    return CompileConfig(target="t", drafter=drafter, output="o", acceptance=acceptance)


def test_it_is_compiled_for_medusa_and_beside_a_rule_that_is_not_lossy() -> None:
    assert config("medusa:x", "typical,coupled").rules() == ("typical", "coupled")
    with pytest.raises(ConfigError, match="--acceptance typical is lossy.*as --acceptance coupled,typical"):
        config("medusa:x", "typical")
    with pytest.raises(ConfigError, match="Medusa's; leave it out, or give medusa:PATH"):
        config("eagle:x", "coupled,typical")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine of a tiny target and heads, for `coupled` and `typical`."""
    folder, target = tmp_path_factory.mktemp("typical"), tiny_model()
    checkpoints.save(folder / "heads", *checkpoints.medusa(target))
    options: dict[str, Any] = {"backend": "eager", "context": 80, "chunk": 16, "tree": "2,1"}
    drafter = f"medusa:{folder / 'heads'}"
    target_folder = save_tiny(folder / "t", model=target)
    return specc.compile(target_folder, drafter, folder / "e", acceptance="coupled,typical", fixed=True, **options)


def test_nobody_gets_it_unasked_and_the_result_says_so(engine: Path) -> None:
    loaded = specc.load(engine)
    options: dict[str, Any] = {"max_new_tokens": 24, "eos_token_id": (), "temperature": 1.2, "seed": 4}
    unasked = loaded.generate(PROMPT, **options)
    assert (unasked.acceptance, unasked.lossy) == ("coupled", False)
    assert unasked.token_ids == loaded.generate(PROMPT, draft_length=0, **options).token_ids
    asked = loaded.generate(PROMPT, acceptance="typical", **options)
    assert (asked.acceptance, asked.lossy) == ("typical", True)
    assert asked.stats.acceptance_rate > unasked.stats.acceptance_rate
    assert not loaded.generate(PROMPT, max_new_tokens=4).lossy


def test_other_engines_are_not_told_to_compile_it(tiny_engine: Path) -> None:
    with pytest.raises(ConfigError, match="'typical' is for engines with Medusa heads; leave it out"):
        specc.load(tiny_engine).generate(PROMPT, acceptance="typical", temperature=1.0)


def test_manifest_inspect_and_verify_name_it(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert specc.load(engine).manifest.lossy == ("typical",)
    inspect(str(engine))
    assert "LOSSY acceptance" in capsys.readouterr().out
    report = verify(engine, quick=True, only=["self-check", "greedy"])
    assert report.engine["lossy"] == ["typical"]
    show(report, SteadyConsole())
    assert "acceptance 'typical' is LOSSY" in " ".join(capsys.readouterr().out.split())
