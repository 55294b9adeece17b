"""The command line: parse, build a config, call one function, print. Flags come from the config dataclasses."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import __version__, streams
from .config import CompileConfig
from .errors import ConfigError, SpeccError
from .flags import add_config, add_options, build_config, read_options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 for the user's doing, 1 for ours, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    streams.steady()
    try:
        options = _parser().parse_args(arguments)
        options.run(options)
        sys.stdout.flush()
        sys.stderr.flush()
        return 0
    except SpeccError as e:
        return _fail(str(e), e.exit_code, arguments)
    except KeyboardInterrupt:
        streams.tell("specc: interrupted; what was there before is untouched")
        return 130
    except BrokenPipeError:  # the reader has gone: nobody is left to tell
        streams.forget_broken()
        return 0
    except SystemExit:  # of --help, --version and an interrupted text
        streams.forget_broken()
        raise
    except OSError as e:  # a full disk, a folder without permission, a name that is too long: not our fault
        place = f"{e.filename}: " if e.filename else ""
        return _fail(f"{place}{e.strerror or e}; make room, or give another place", 2, arguments)
    except Exception as e:
        return _fail(f"{type(e).__name__}: {e} (a fault of specc; --traceback shows where)", 1, arguments)


def _fail(message: str, code: int, arguments: list[str]) -> int:
    trace = traceback.format_exc() if "--traceback" in arguments else ""
    streams.tell(f"{trace}specc: {' '.join(message.split())}")
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's own, which is at a loss with a prompt that begins like a flag: says how to type it.

        It also takes every `--` for the one behind which no flags come, so a prompt `--` is kept from it.
        """
        has_prompt = any(action.dest == "prompt" for action in self._actions)
        dashes = has_prompt and list(args or ())[-2:] == ["--", "--"]
        try:
            found, rest = super().parse_known_args([*args[:-1], "prompt"] if dashes else args, namespace)
            if dashes and found.prompt == "prompt":
                found.prompt = "--"
            return found, rest
        except ConfigError as e:
            prompt = next((word for word in args or () if self._looks_like_a_flag(word)), None)
            wanted = "PROMPT" in str(e) or "ignored explicit argument" in str(e)  # -hello is read as -h
            if not wanted or prompt is None or "--" in args or not has_prompt:
                raise
            raise ConfigError(
                f'{prompt} is no option of {self.prog}; if it is the prompt, type {self.prog} ENGINE -- "{prompt}", '
                "with the options before the --"
            ) from e

    def _looks_like_a_flag(self, word: str) -> bool:
        """Whether a word begins like a flag, and is neither one of ours nor a negative number."""
        known = word.partition("=")[0] in self._option_string_actions
        return word.startswith("-") and len(word) > 1 and not known and not self._negative_number_matcher.match(word)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specc", description="Compile speculative decoding into one engine, and run it.")
    parser.add_argument("--version", action="version", version=f"specc {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for add in (_compile, _train, _plan, _generate, _chat, _bench, _verify, _inspect, _doctor, _export):
        command = add(commands)
        command.add_argument("--traceback", action="store_true", help="show the whole error")
    return parser


def _interrupt(number: int, frame: object) -> NoReturn:
    """SIGTERM ends a compile as Ctrl-C does: nothing half-written stays."""
    raise KeyboardInterrupt


def _compile(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("compile", help="compile a target and a drafter into an engine")
    add_config(parser, CompileConfig)
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write the graph before and after every pass")
    parser.add_argument("--without", action="append", default=[], metavar="PASS", help="leave a pass out (bisection)")
    parser.add_argument("--quiet", action="store_true", help="print nothing")

    def run(options: argparse.Namespace) -> None:
        from .driver import compile_engine
        from .progress import Report

        config = build_config(CompileConfig, options)
        signal.signal(signal.SIGTERM, _interrupt)
        compile_engine(config, Report(options.quiet), dump=options.dump, without=tuple(options.without))

    parser.set_defaults(run=run)
    return parser


def _plan(commands: Any) -> argparse.ArgumentParser:
    from .payoff.config import PlanConfig

    parser = commands.add_parser("plan", help="what speculation would gain, from numbers or an engine's measurements")
    parser.add_argument("engine", metavar="ENGINE", nargs="?", help="take what it was measured to cost and to accept")
    add_config(parser, PlanConfig)

    def run(options: argparse.Namespace) -> None:
        from .payoff.run import plan

        plan(options.engine, build_config(PlanConfig, options))

    parser.set_defaults(run=run)
    return parser


def _generate(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("generate", help="generate text with an engine")
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument(
        "prompt", metavar="PROMPT", help="the prompt, behind -- if it starts with -; a lone - reads it from stdin"
    )
    parser.add_argument("--raw", action="store_true", help="do not wrap the prompt in the model's chat template")
    add_options(parser)

    def run(options: argparse.Namespace) -> None:
        from .generate import generate

        generate(options.engine, options.prompt, raw=options.raw, **read_options(options))

    parser.set_defaults(run=run)
    return parser


def _chat(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("chat", help="talk with an engine: one line of stdin is one turn")
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    add_options(parser, without=("n", "logprobs", "logprobs_mode"))

    def run(options: argparse.Namespace) -> None:
        from .chat import chat

        chat(options.engine, system=options.system, **read_options(options))

    parser.set_defaults(run=run)
    return parser


def _bench(commands: Any) -> argparse.ArgumentParser:
    from .bench.config import BenchConfig

    parser = commands.add_parser("bench", help="measure engines of one target against eager models, side by side")
    parser.add_argument("engines", metavar="ENGINE", nargs="*", help="several are compared in one run")
    add_config(parser, BenchConfig)

    def run(options: argparse.Namespace) -> None:
        from .bench.run import bench

        bench(options.engines, build_config(BenchConfig, options))

    parser.set_defaults(run=run)
    return parser


def _verify(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("verify", help="check that an engine's texts and laws are its target's")
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument("--target", metavar="PATH", help="where the target model is now (default: where it was)")
    parser.add_argument("--json", metavar="FILE", help="write every figure, for a report to attach")
    parser.add_argument("--draws", type=int, metavar="N", help="draws for each sampled law (default 400, quick 150)")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, draft lengths and draws")

    def run(options: argparse.Namespace) -> None:
        from .verifier.show import verify_and_show

        verify_and_show(
            options.engine, json_file=options.json, target=options.target, draws=options.draws, quick=options.quick
        )

    parser.set_defaults(run=run)
    return parser


def _train(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("train", help="train a drafter for a target")
    from .train.config import TrainConfig

    add_config(parser, TrainConfig)
    parser.add_argument("--quiet", action="store_true", help="print nothing")

    def run(options: argparse.Namespace) -> None:
        from .progress import Report
        from .train.run import train

        train(build_config(TrainConfig, options), Report(options.quiet))

    parser.set_defaults(run=run)
    return parser


def _inspect(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("inspect", help="show what is in an engine")
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument("--json", action="store_true", help="print the manifest")

    def run(options: argparse.Namespace) -> None:
        from .inspect import inspect

        inspect(options.engine, as_json=options.json)

    parser.set_defaults(run=run)
    return parser


def _doctor(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("doctor", help="show what this machine has for engines, and what an engine lacks here")
    parser.add_argument("engine", nargs="?", metavar="ENGINE")
    parser.add_argument("--json", action="store_true", help="print it as JSON")

    def run(options: argparse.Namespace) -> None:
        from .doctor import doctor

        doctor(options.engine, options.json)

    parser.set_defaults(run=run)
    return parser


def _export(commands: Any) -> argparse.ArgumentParser:
    parser = commands.add_parser("export", help="write an engine's graphs in another format")
    parser.add_argument("engine", metavar="ENGINE")
    parser.add_argument("--onnx", type=Path, required=True, metavar="DIR", help="folder for the ONNX files")
    parser.add_argument(
        "--for", dest="reader", default="onnxruntime", metavar="READER", help="onnxruntime (default) or tensorrt"
    )
    parser.add_argument("--opset", type=int, default=18, metavar="N", help="18 (default) or 24")

    def run(options: argparse.Namespace) -> None:
        from .export import export

        export(options.engine, options.onnx, reader=options.reader, opset=options.opset)

    parser.set_defaults(run=run)
    return parser
