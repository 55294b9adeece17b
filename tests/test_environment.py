"""What this machine is: the compile writes it into an engine, and the run time checks it, from one reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc import environment
from specc.runtime.checks import read_cpuinfo

X86 = """processor\t: 0
model name\t: Big (R) CPU: @ 2.00GHz
flags\t\t: fpu avx2 fma

processor\t: 1
model name\t: Little
flags\t\t: fpu
"""
ARM = "Processor\t: AArch64\nprocessor\t: 0\n\nFeatures\t: fp asimd sve\nHardware\t: board\n"


def test_the_first_processor_of_the_list(tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text(X86)
    found = read_cpuinfo(listed)
    assert (found["processor"], found["model name"], found["flags"]) == ("0", "Big (R) CPU: @ 2.00GHz", "fpu avx2 fma")
    listed.write_text(ARM)
    assert read_cpuinfo(listed)["flags"] == "fp asimd sve"
    listed.write_bytes(b"\xff\n: \n")
    assert read_cpuinfo(listed)["flags"] == read_cpuinfo(tmp_path / "none")["flags"] == ""


def test_an_engine_names_what_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(X86)
    monkeypatch.setattr(environment, "read_cpuinfo", lambda: read_cpuinfo(tmp_path / "cpuinfo"))
    here = environment.processor()
    assert (here["name"], here["flags"]) == ("Big (R) CPU: @ 2.00GHz", ["avx2", "fma"])
    assert "Big (R) CPU: @ 2.00GHz" in environment.machine("cpu") and "avx2,fma" in environment.machine("cpu")
