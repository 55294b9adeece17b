"""`specc verify`: progress while it runs, then a table, what failed, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.text import Text

from ..console import SteadyConsole, new_table
from ..errors import ConfigError, EngineFault
from ..show import said_later
from .report import FAIL, PASS, Check, Report
from .run import verify

_STYLES = {PASS: "green", FAIL: "bold red"}
MOST_LINES = 12  # of one check; a report has all


def verify_and_show(engine: str, *, json_file: str | None = None, **options: Any) -> Report:
    """Verify an engine, print what was found, and write it to a file if one is named.

    Args:
        engine: its folder.
        json_file: where the report goes.
        options: as `verify` takes them.

    Raises:
        EngineFault: a check failed; says which.
        ConfigError, EngineError: as `verify`; also where the file cannot be written.
    """
    if json_file:
        _check_file(Path(json_file))
    progress = SteadyConsole(stderr=True)
    progress.print(f"load {engine}")
    with said_later():  # the report has the acceptance
        report = verify(engine, **options, tell=lambda check: progress.print(_line(check)))
    show(report, SteadyConsole())
    if json_file:
        Path(json_file).write_text(json.dumps(report.to_json(), indent=1, allow_nan=False), encoding="utf-8")
    if not report.passed:
        where = f"; {json_file} has every figure" if json_file else "; --json FILE writes a report to attach"
        raise EngineFault(
            f"{engine}: {len(report.failed)} of {len(report.checks)} checks failed ({', '.join(report.failed)}){where}"
        )
    return report


def show(report: Report, console: SteadyConsole) -> None:
    """One line a check, then failures and float ties, then what the result is worth."""
    table = new_table(f"{report.engine['path'] or 'engine'} ({report.engine['engine_key'][:12]})", "check")
    table.add_column("result")
    table.add_column("what was compared", overflow="fold")
    for check in report.checks:
        table.add_row(check.name, Text(check.result, style=_STYLES.get(check.result, "dim")), check.compared)
    console.print(table)
    for check in report.checks:
        for kind, lines in (("failed", check.faults), ("float tie", check.ties)):
            for line in lines[:MOST_LINES]:
                console.print(f"{check.name} {kind}: {line}")
            if len(lines) > MOST_LINES:
                console.print(f"{check.name} {kind}: and {len(lines) - MOST_LINES} more")
    skipped = sum(check.result not in (PASS, FAIL) for check in report.checks)
    chance = f"; chance alone fails a right engine in 1 of {1 / report.false_alarm:,.0f}" if report.false_alarm else ""
    compared = any(check.figures.get("tokens") for check in report.checks) and not report.failed
    differ = "are equal to the last bit" if compared and not report.noise else f"differ by at most {report.noise:.2g}"
    console.print(f"scores of programs {differ} (allowed {report.allowed:g}); {report.ties} float ties{chance}")
    for rule in report.engine["lossy"]:
        console.print(f"note: acceptance {rule!r} is LOSSY: texts that ask for it do not follow the target's law")
    verdict = "FAILED" if report.failed else "all passed"
    console.print(f"{verdict}: {len(report.checks) - skipped} checks, {skipped} skipped")


def _line(check: Check) -> str:
    return f"{check.name:<34} {check.result:<5} {check.seconds:6.1f} s"


def _check_file(path: Path) -> None:
    """Before minutes of checks, not after them; leaves the place as it was."""
    try:
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or e
        raise ConfigError(f"--json {path}: cannot be written ({reason}); give a file in a folder that is") from e
