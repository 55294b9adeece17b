"""`specc plan`: expected tokens and speed-up by hand, from numbers and from what an engine was measured to do."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import toy_manifest
from rich.console import Console

from specc.bench.formulas import tokens_per_step
from specc.cli import main
from specc.errors import ConfigError, EngineError
from specc.payoff import measured
from specc.payoff.config import PlanConfig
from specc.payoff.run import plan
from specc.payoff.show import show
from specc.tune import best_of, candidates

SECONDS = {
    "plain": [0.010],
    "step": [0.015],
    "step_k1": [0.011],
    "plain_b4": [0.02],
    "step_b4": [0.05],
    "step_k1_b4": [0.03],
}


def engine(folder: Path, accepted: tuple[int, ...] = (8, 4, 1), steps: int = 10, **changes: Any) -> str:
    """A manifest alone, of a chain of 3 and one of 1, for 1 and 4 rows, with costs that were made up."""
    trial = {"steps": steps, "drafts": steps, "accepted": accepted}
    cost = {"seconds": SECONDS, "tokens": [64], "acceptance": {"step": trial}, "prompts": 1, "new_tokens": 16}
    manifest = toy_manifest(**{"depth": 3, "ladder": (1,), "batch": 4, "cost": cost, **changes})
    (folder / "manifest.json").write_text(manifest.to_json())
    return str(folder)


def numbers(result: dict[str, Any], name: str) -> list[float]:
    return [draft[name] for draft in result["drafts"]]


class TestNumbers:
    """From an acceptance and costs."""

    def test_by_hand(self) -> None:
        result = plan(None, PlanConfig(acceptance=0.5, cost=0.1, draft_lengths="1-3"))
        assert numbers(result, "tokens_per_step") == [1.5, 1.75, 1.875]
        assert numbers(result, "step_cost") == pytest.approx([1.1, 1.2, 1.3])
        assert numbers(result, "speedup") == pytest.approx([1.5 / 1.1, 1.75 / 1.2, 1.875 / 1.3])
        assert result["recommended"]["draft_length"] == 2
        assert result["drafts"][0]["break_even"] == pytest.approx(0.1)  # 1 + a = 1.1
        assert result["drafts"][1]["break_even"] == pytest.approx(0.170820, abs=1e-6)  # a + a^2 = 0.2
        assert result["verdicts"] == [
            "speculation pays at an acceptance of 50%: chain of 2 emits 1.75 tokens for 1.20 plain steps, 1.46x; "
            "it pays above an acceptance of 17%"
        ]

    def test_a_verification_may_cost_more_for_each_length(self) -> None:
        config = PlanConfig(acceptance=1.0, cost=0.0, draft_lengths="1,3,7", verify_cost="1,2,16")
        result = plan(None, config)
        assert numbers(result, "speedup") == [2, 2, 0.5]
        assert result["best"]["draft_length"] == 1 and result["drafts"][2]["break_even"] is None

    def test_what_does_not_pay_is_told_what_would(self) -> None:
        result = plan(None, PlanConfig(acceptance=0.2, cost=0.1, verify_cost="1.3"))
        assert result["recommended"] is None and result["best"]["draft_length"] == 1
        assert result["break_even"] == pytest.approx(min(d["break_even"] for d in result["drafts"]))
        config = PlanConfig(acceptance=result["break_even"] + 0.01, cost=0.1, verify_cost="1.3")
        assert plan(None, config)["recommended"]
        config = PlanConfig(acceptance=result["break_even"] - 0.01, cost=0.1, verify_cost="1.3")
        assert not plan(None, config)["recommended"]
        assert re.search(
            r"does not pay at an acceptance of 20%: the best, .*; it would pay above an ", result["verdicts"][0]
        )
        never = plan(None, PlanConfig(acceptance=0.9, cost=1.5))
        assert never["break_even"] is None and "does not pay at any acceptance" in never["verdicts"][0]

    def test_many_texts_at_once_make_it_stop_paying(self) -> None:
        """By hand, S = 1/4: 8 texts cost 2 plain passes, and 8 (1 + 1) tokens cost 4, so a step is 2 + c plain ones."""
        result = plan(None, PlanConfig(acceptance=0.5, cost=0.1, draft_lengths="1,7", slope=0.25, batch="8,2"))
        assert numbers(result, "step_cost") == pytest.approx([1.1, 2.7])
        assert {size: best["draft_length"] for size, best in result["batch"].items()} == {"1": 1, "2": 1, "8": 1}
        gains = [best["speedup"] for best in result["batch"].values()]
        assert gains == pytest.approx([1.5 / 1.1, 1.5 / 1.1, 1.5 / 2.1])
        assert result["verdicts"][-1].startswith("speculation stops paying at batch size 8 (1.36x at 1, 1.36x at 2, ")

    def test_the_grid(self) -> None:
        grid = plan(None, PlanConfig(acceptance=0.5, cost=0.1, draft_lengths="1-4"))["grid"]
        assert list(grid["best"]) == ["0", "0.05", "0.1", "0.2", "0.4"] and grid["acceptance"][10] == 0.5
        assert grid["best"]["0.1"][10] == {"draft_length": 2, "speedup": pytest.approx(1.75 / 1.2)}
        assert grid["best"]["0"][20] == {"draft_length": 4, "speedup": 5}
        assert grid["best"]["0.4"][0] == {"draft_length": 1, "speedup": pytest.approx(1 / 1.4)}

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"acceptance": 1.2}, "--acceptance 1.2 must be a number from 0 to 1"),
            ({"cost": -1.0}, "--cost -1.0 must be a number of at least 0"),
            ({"cost": float("nan")}, "--cost nan"),
            ({"draft_lengths": "3-1"}, "--draft-lengths '3-1' is not a list"),
            ({"draft_lengths": "0-3"}, "draft lengths are 1..16"),
            ({"draft_lengths": "1,x"}, "not a list"),
            ({"verify_cost": "1,2"}, "2 numbers for 8 draft lengths"),
            ({"verify_cost": "0"}, "more than 0"),
            ({"verify_cost": "1", "slope": 0.1}, "give one of the two"),
            ({"batch": "1,8"}, "--batch 1,8 needs --slope"),
            ({"batch": "1,x", "slope": 0.1}, "not a list of numbers of texts"),
            ({"batch": "0", "slope": 0.1}, "0 is outside 1..1024"),
        ],
        ids=str,
    )
    def test_refusals(self, options: dict[str, Any], told: str) -> None:
        with pytest.raises(ConfigError, match=told):
            PlanConfig(**options)


class TestEngine:
    """From a manifest."""

    def test_by_hand(self, tmp_path: Path) -> None:
        result = plan(engine(tmp_path), PlanConfig())
        assert numbers(result, "tokens_per_step") == pytest.approx([1.8, 2.2, 2.3])
        assert numbers(result, "step_cost") == pytest.approx([1.1, 1.3, 1.5])
        assert [draft["source"] for draft in result["drafts"]] == ["measured", "interpolated", "measured"]
        assert result["recommended"]["speedup"] == pytest.approx(2.2 / 1.3)
        assert result["acceptance"] == 13 / 22 and result["acceptance_per_level"] == [0.8, 0.5, 0.25]
        assert "compile with --ladder 2 to measure it" in result["verdicts"][1]

    def test_lengths_beyond_what_was_compiled(self, tmp_path: Path) -> None:
        result = plan(engine(tmp_path), PlanConfig(draft_lengths="5"))
        (draft,) = result["drafts"]
        fourth = 0.8 * 0.5 * 0.25 * 13 / 22
        assert draft["tokens_per_step"] == pytest.approx(2.3 + fourth + fourth * 13 / 22)
        assert (draft["source"], draft["step_cost"]) == ("extrapolated", pytest.approx(1.9))

    def test_rows_side_by_side(self, tmp_path: Path) -> None:
        batch = plan(engine(tmp_path), PlanConfig())["batch"]
        assert [(size, best["draft_length"]) for size, best in batch.items()] == [("1", 2), ("4", 1)]
        assert batch["4"]["speedup"] == pytest.approx(1.8 / 1.5)

    def test_a_drafter_that_is_refused_does_not_pay(self, tmp_path: Path) -> None:
        result = plan(engine(tmp_path, (1, 0, 0), 20), PlanConfig())
        assert result["recommended"] is None and result["break_even"] == pytest.approx(0.1)
        assert result["verdicts"][0].endswith(
            "1.05 tokens for 1.10 plain steps, 0.95x; it would pay above an acceptance of 10%"
        )

    def test_the_dynamic_programme_where_the_engine_was_tuned(self, tmp_path: Path) -> None:
        verify = {"1": 1.0, "4": 1.0, "5": 1.6, "16": 2.0}
        rates = [0.4, 0.3, 0.15, 0.05]
        tuned = {"child_acceptance": rates, "draft_cost": 0.2, "verify_cost": verify}
        result = plan(engine(tmp_path, (1, 0, 0), 20, config={"tuned": tuned}), PlanConfig())
        known = {n: 1.0 if n <= 4 else 1.6 + (n - 5) * 0.4 / 11 for n in range(1, 17)}
        best = best_of(candidates(rates, 0.2, known.__getitem__))
        assert not best.tree.is_chain and result["best"]["paths"] == [list(path) for path in best.tree.paths[1:]]
        assert result["best"]["speedup"] == pytest.approx(best.speedup)
        assert f"compile with --tree '{result['best']['paths']}'" in result["verdicts"][1]

    def test_a_measurement_is_the_better_word_on_the_same_tree(self) -> None:
        tree, other = {"paths": [[0], [1]], "speedup": 1.2}, {"paths": [[0]], "speedup": 1.1}
        assert measured._unmeasured([tree, other], [{**tree, "speedup": 0.9}]) == [other]

    def test_a_main_tree_is_among_its_drafts(self, tmp_path: Path) -> None:
        result = plan(engine(tmp_path, (6, 2), tree=(2, 1), ladder=(), batch=1), PlanConfig())
        (draft,) = result["drafts"]
        assert (draft["draft"], draft["tokens_per_step"]) == ("tree 2+2", pytest.approx(1.8))
        assert draft["step_cost"] == pytest.approx(1.5) and result["grid"] == {}
        dynamic = {"draft": {"tree": "dynamic:5,2,2"}}
        result = plan(engine(tmp_path, (6, 2), tree=(2, 1), ladder=(), batch=1, config=dynamic), PlanConfig())
        assert result["best"]["draft"] == "dynamic tree of 4, depth 2"
        with pytest.raises(ConfigError, match="--draft-lengths: .* drafts trees alone"):
            plan(str(tmp_path), PlanConfig(draft_lengths="2"))

    def test_refusals(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="--acceptance, --verify-cost and the engine .* leave out one"):
            plan(engine(tmp_path), PlanConfig(acceptance=0.5, verify_cost="1"))
        with pytest.raises(EngineError, match="holds no measurements .* compiled with --fixed"):
            plan(engine(tmp_path, cost={}), PlanConfig())
        with pytest.raises(ConfigError, match=r"--cost C not given; type specc plan --acceptance 0\.7 --cost 0\.05"):
            plan(None, PlanConfig(acceptance=0.5))


@pytest.mark.parametrize("kind", ["numbers", "engine", "tree"])
def test_table_json_and_picture_say_the_same(kind: str, tmp_path: Path) -> None:
    config = {"json": str(tmp_path / "out.json"), "plot": str(tmp_path / "out.png")}
    if kind == "numbers":
        more = {"acceptance": 0.7, "cost": 0.05, "slope": 0.02, "batch": "1,16,64"}
        result = plan(None, PlanConfig(**config, **more))
    else:
        tree: dict[str, Any] = {"tree": (2, 1), "ladder": (), "batch": 1} if kind == "tree" else {}
        result = plan(engine(tmp_path, (6, 2) if tree else (8, 4, 1), **tree), PlanConfig(**config))
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(result))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    out = io.StringIO()
    show(result, Console(file=out, width=160))
    lines = out.getvalue().splitlines()
    for draft in result["drafts"]:
        figures = f"{draft['tokens_per_step']:.2f} +{draft['step_cost']:.2f} +{draft['speedup']:.2f}x"
        assert any(re.match(rf" *{re.escape(draft['draft'])} +{figures}", line) for line in lines)
    for size, best in result["batch"].items():
        assert any(re.match(rf" *{size} +{best['draft']} .*{best['speedup']:.2f}x", line) for line in lines)
    assert lines[-len(result["verdicts"]) :] == result["verdicts"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--acceptance", "0.7", "--cost", "0.05", "--draft-lengths", "1-8"]) == 0
    shown = capsys.readouterr().out
    best = max(tokens_per_step(0.7, k) / (1 + 0.05 * k) for k in range(1, 9))
    assert "speculation pays" in shown and f"{best:.2f}x" in shown
    assert main(["plan", engine(tmp_path)]) == 0
    for arguments, told in (
        (["plan"], "--acceptance A and --cost C not given"),
        (["plan", "nowhere"], "specc compile"),
    ):
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
