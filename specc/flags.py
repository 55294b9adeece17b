"""Flags: one for every field of a config, and one for every option of a request that has a note."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from .errors import ConfigError
from .runtime.options import Options


def add_config(parser: argparse.ArgumentParser, config: type[Any]) -> None:
    """One flag per field of a config dataclass; nested dataclasses give their own."""
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(hints[field.name]):
            add_config(parser, typing.cast(Any, hints[field.name]))
            continue
        meta = dict(field.metadata)
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        kind = next((kind for kind in (int, float) if kind in kinds), str)
        more = {k: meta[k] for k in ("choices", "metavar") if k in meta}
        default = "" if field.default in (None, "") or "default" in meta["help"] else f" (default {field.default})"
        help = f"{meta['help']}{default}"
        if hints[field.name] is bool:
            flag = f"--{field.name.replace('_', '-')}"
            parser.add_argument(
                flag, dest=field.name, action="store_true", default=argparse.SUPPRESS, help=meta["help"]
            )
            continue
        if meta.get("positional"):
            known = meta.get("choices")
            form: dict[str, Any] = {"choices": known} if known else {"metavar": field.name.upper()}
            parser.add_argument(field.name, help=help, **form)
            continue
        flags = [flag for flag in (meta.get("short"), f"--{field.name.replace('_', '-')}") if flag]
        parser.add_argument(
            *flags,
            dest=field.name,
            type=kind,
            default=argparse.SUPPRESS,
            help=help,
            required=field.default == "",
            **more,
        )


def build_config(config: type[Any], options: argparse.Namespace) -> Any:
    """The config that the parsed flags describe."""
    values, hints = {}, typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(hints[field.name]):
            values[field.name] = build_config(typing.cast(Any, hints[field.name]), options)
        elif hasattr(options, field.name):
            values[field.name] = getattr(options, field.name)
    return config(**values)


def add_options(parser: argparse.ArgumentParser, without: Container[str] = ()) -> None:
    """A flag for every option but those of `without`; what is not given stays unset."""
    group = parser.add_argument_group("what is generated")
    for name, kind, note in _noted():
        if name not in without:
            form, more = _form(name, kind)
            flag = f"--{name.replace('_', '-')}"
            again = " (may be given again)" if "action" in more else ""
            group.add_argument(flag, dest=name, type=form, default=argparse.SUPPRESS, help=note + again, **more)


def read_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options that were given.

    Raises:
        ConfigError: two of them contradict each other.
    """
    given = {name: getattr(parsed, name) for name, _, _ in _noted() if hasattr(parsed, name)}
    for name, value in given.items():
        if _form(name, typing.get_type_hints(Options)[name])[0] is _bias:
            given[name] = dict(value)
            twice = next((token for token, _ in value if sum(token == other for other, _ in value) > 1), None)
            if twice is not None:
                raise ConfigError(f"--{name.replace('_', '-')} gives token id {twice} more than once; give one number")
    return given


def _noted() -> list[tuple[str, Any, str]]:
    """Name, type and note of every option with a note."""
    hints = typing.get_type_hints(Options, include_extras=True)
    noted = {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is Annotated}
    return [(name, kind, note) for name, (kind, note) in noted.items()]


def _form(name: str, kind: Any) -> tuple[Callable[[str], Any], dict[str, Any]]:
    """How a value of this type is typed: what reads it, and what else argparse is told."""
    kinds = set(typing.get_args(kind) or (kind,)) - {type(None)}
    if Mapping[int, float] in kinds:
        return _bias, {"action": "append", "metavar": "ID=VALUE"}
    if Mapping[str, Any] in kinds:
        return _json, {"metavar": "FILE|JSON"}
    if Iterable[int] in kinds:
        return _ids, {"metavar": "ID,ID"}
    if Iterable[str] in kinds:
        return str, {"action": "append", "metavar": "TEXT"}
    (scalar,) = kinds
    return scalar, {"metavar": {int: "N", float: "X"}.get(scalar, name.rpartition("_")[2].upper())}


def _bias(word: str) -> tuple[int, float]:
    token, _, value = word.partition("=")
    try:
        return int(token), float(value)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{word!r} is not ID=VALUE, as 42=-1.5") from e


def _ids(word: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in word.split(",")) if word.strip() else ()
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{word!r} is not a list of token ids, as 5,17") from e


def _json(word: str) -> str:
    """JSON as it stands, or what is in a file of that name."""
    if word.lstrip()[:1] in ("{", "[", '"') or word.strip() in ("true", "false"):
        return word
    try:
        return Path(word).read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise argparse.ArgumentTypeError(f"{word!r} is neither JSON nor a file that can be read ({e})") from e
