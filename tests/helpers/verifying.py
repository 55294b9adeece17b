"""Engines to verify, and what a report says."""

from __future__ import annotations

import dataclasses
from typing import Any

from helpers.fake_engine import fake_engine

import specc
from specc.runtime import Engine
from specc.verifier import Check, Report


def failed(engine: Engine, *only: str, **options: Any) -> list[str]:
    return specc.verify(engine, quick=True, only=only, **options).failed


def toy(**changes: Any) -> Engine:
    """An engine in plain Python, whose drafter is not the target."""
    engine, _ = fake_engine(**changes)
    return other_drafter(engine)


def other_drafter(engine: Engine) -> Engine:
    drafter = dataclasses.replace(engine.manifest.drafter, digest="1")
    engine.manifest = dataclasses.replace(engine.manifest, drafter=drafter)
    return engine


def by_name(report: Report) -> dict[str, Check]:
    return {check.name: check for check in report.checks}
