"""The error tree: who is at fault, and therefore the exit code.

A message says what was found, what was expected, where, and what to type. Errors that are the user's doing end the
command line with 2, ours with 1 (`exit_code`).
"""

from __future__ import annotations


class SpeccError(Exception):
    """Base of every error that specc raises on purpose."""

    exit_code = 2


class ConfigError(SpeccError):
    """An option or a request parameter is out of range, unknown or contradicts another."""


class CaptureError(SpeccError):
    """A model cannot be loaded or cannot be captured faithfully."""


class TokenizerError(SpeccError):
    """The tokenizers of target and drafter do not agree."""


class BackendError(SpeccError):
    """A back end is missing, too old, or cannot take the graph."""


class EngineError(SpeccError):
    """An engine folder cannot be used."""


class EngineFormatError(EngineError):
    """The folder is not an engine, is truncated, or a file in it is damaged."""


class EngineVersionError(EngineError):
    """The engine was written by another format version or needs another torch."""


class EngineMismatchError(EngineError):
    """The engine was built for another device or processor."""


class EngineFault(EngineError):
    """A loaded engine did what none may do: a bug of ours."""

    exit_code = 1


class PassError(SpeccError):
    """A pass found a graph that breaks its contract: a bug of ours."""

    exit_code = 1


class LowAcceptanceWarning(UserWarning):
    """An engine's drafts are mostly refused, so that speculation gains little or nothing."""


class OtherThreadsWarning(UserWarning):
    """An engine runs under another number of threads than the one under which its costs were measured."""
