"""What a request may not ask for: contradictions, and what the engine's programs cannot do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..manifest import MAX_BATCH, EngineManifest
from .options import MAX_TOP_LOGPROBS, Grammar
from .programs import Programs

if TYPE_CHECKING:
    from .request import Request
    from .text import Text


def check_request(request: Request, manifest: EngineManifest, known: int, text: Text | None) -> None:
    """Options that contradict each other, or the engine's sizes.

    Raises:
        ConfigError: two do; names both, and the way out.
    """
    if request.min_new_tokens > request.max_new_tokens:
        raise ConfigError(
            f"min_new_tokens {request.min_new_tokens} is above max_new_tokens {request.max_new_tokens}; lower the one, "
            "or raise the other"
        )
    room = manifest.context - known - len(request.prompt)
    if request.min_new_tokens > room:
        raise ConfigError(
            f"min_new_tokens {request.min_new_tokens} is above the {room} tokens that the engine's context of "
            f"{manifest.context} leaves behind the prompt; lower it, or compile with a larger --context"
        )
    banned = {token for token, value in request.bias.items() if value == -math.inf}
    barred = banned | (set(request.eos_token_ids) if request.min_new_tokens else set())
    if not (manifest.vocab_size - len(barred) if request.allowed is None else len(request.allowed - barred)):
        raise ConfigError(
            "logit_bias, bad_token_ids, allowed_token_ids and min_new_tokens together leave no token that may come; "
            "allow at least one"
        )
    if request.grammar is not None and (banned or request.allowed is not None or request.min_new_tokens):
        raise ConfigError(
            "a grammar contradicts banned tokens (bad_token_ids, allowed_token_ids, a bias of -inf) and "
            "min_new_tokens: together they may leave no token; put the restriction into the grammar"
        )
    if request.stop and text is None:
        raise ConfigError("stop needs a tokenizer, and this engine has none; use eos_token_id")
    for stop in request.stop:
        held = text.special_in(stop) if text is not None else None
        if held is not None:
            raise ConfigError(
                f"stop {stop!r} holds the special token {held[0]!r}, which is never in a text and so would "
                f"stop nothing; give eos_token_id={held[1]}"
            )
    if not isinstance(request.logprobs_mode, str) or request.logprobs_mode not in ("raw", "processed"):
        raise ConfigError(f"logprobs_mode {request.logprobs_mode!r} is not one of raw, processed")
    if request.logprobs_mode == "processed" and request.logprobs is None:
        raise ConfigError(f"logprobs_mode 'processed' needs logprobs, 0..{MAX_TOP_LOGPROBS} alternatives")
    if request.n > manifest.batch:
        raise ConfigError(
            f"n {request.n} must be in 1..{manifest.batch}, the rows of this engine; {_more_rows(request.n)}"
        )
    if request.n > 1 and not request.temperature:
        raise ConfigError(
            f"n {request.n} at temperature 0 would give the same text {request.n} times; set a temperature"
        )
    if not isinstance(request.reuse, bool):
        raise ConfigError(f"reuse must be True or False, not {request.reuse!r}")


def check_engine(request: Request, manifest: EngineManifest, programs: Programs) -> None:
    """What this engine's programs cannot do is refused, never ignored.

    Raises:
        ConfigError: they lack an input or an output that an option needs.
    """
    needs = {
        "repetition_penalty": ("repetition_penalty", request.repetition_penalty != 1),
        "presence_penalty": ("presence_penalty", request.presence_penalty != 0),
        "frequency_penalty": ("frequency_penalty", request.frequency_penalty != 0),
        "logit_bias, bad_token_ids or allowed_token_ids": ("bias", request.bias or request.allowed is not None),
        "min_new_tokens": ("min_length", request.min_new_tokens > 0),
    }
    sampled = {name: (name, getattr(request, name) != off) for name, off in (("top_k", 0), ("top_p", 1), ("min_p", 0))}
    for only_sampled, wanted in ((False, needs), (True, sampled)):
        for option, (tensor, asked) in wanted.items():
            if asked and not programs.all_read(tensor, sampled=only_sampled):
                raise ConfigError(
                    f"this engine's programs have no input {tensor}, which {option} needs; compile it again"
                )
    scores = "logits" if request.logprobs_mode == "raw" else "processed"
    if request.logprobs is not None and not (programs.all_return("path") and programs.all_return(scores)):
        raise ConfigError(f"this engine's programs do not return {scores}, which logprobs needs; compile it again")
    if not programs.find(request.rule, request.draft_length, 1):
        kind = f"step that drafts {request.draft_length}" if request.draft_length else "plain step"
        raise ConfigError(f"this engine has no {request.rule} {kind}, which this request needs; compile it again")


def _more_rows(rows: int) -> str:
    if rows > MAX_BATCH:
        return f"engines have at most {MAX_BATCH} rows: ask several times, with seeds of their own"
    return f"compile it with --batch {rows}"


def grammar_of(
    options: Mapping[str, Any], text: Text | None, manifest: EngineManifest, eos: tuple[int, ...]
) -> Grammar | None:
    """The automaton that the text must follow, compiled if it is not yet."""
    asked = [name for name in ("grammar", "regex", "json_schema") if options.get(name) is not None]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} contradict each other; give one")
    if not asked:
        return None
    if not eos:
        raise ConfigError(f"{asked[0]} needs an id that ends the text; give eos_token_id")
    room = next((spec.shape[1] for spec in manifest.tensors if spec.name == "grammar_next"), 0)
    if not room:
        raise ConfigError(f"this engine's programs have no room for {asked[0]}; compile it again with --grammar 65536")
    automaton: Any = options.get("grammar")
    if automaton is None:
        if text is None:
            raise ConfigError(f"{asked[0]} needs a tokenizer, and this engine has none; give a grammar")
        from . import grammar  # not before: it is large, and few ask for it

        build = grammar.compile_regex if asked[0] == "regex" else grammar.compile_json_schema
        return build(options[asked[0]], text, manifest.vocab_size, eos, limit=room)
    lacks = [n for n in ("token_class", "next", "classes", "start", "next_state") if not hasattr(automaton, n)]
    if lacks:
        raise ConfigError(f"grammar must be what specc.runtime.grammar builds; {automaton!r} has no {lacks[0]}")
    if len(automaton.token_class) != manifest.vocab_size:
        raise ConfigError(
            f"grammar was built for {len(automaton.token_class)} tokens, this engine has {manifest.vocab_size}; "
            "build it with this engine's tokenizer"
        )
    if len(automaton.next) > room:
        raise ConfigError(
            f"grammar needs a table of {len(automaton.next)} entries, this engine's holds {room}; simplify it, or "
            f"compile with --grammar {len(automaton.next)}"
        )
    found: Grammar = automaton
    _check_tables(found, eos)
    return found


def _check_tables(grammar: Grammar, eos: tuple[int, ...]) -> None:
    """What the programs take for granted: they do not check where they read.

    Raises:
        ConfigError: a class or a state is out of range, or none of the ids that end this text ends one of the grammar.
    """
    if grammar.classes < 1 or not len(grammar.next):
        raise ConfigError(
            f"grammar: a table of {len(grammar.next)} entries for {grammar.classes} classes; "
            "build it with specc.runtime.grammar"
        )
    states, rest = divmod(len(grammar.next), grammar.classes)
    lowest, highest = int(grammar.next.min()), int(grammar.next.max())
    classes = int(grammar.token_class.min()), int(grammar.token_class.max())
    if rest or not (-1 <= lowest and highest < states) or classes[0] < 0 or classes[1] >= grammar.classes:
        raise ConfigError(
            f"grammar: a table of {len(grammar.next)} entries for {grammar.classes} classes names states up to "
            f"{highest} and classes up to {classes[1]}; build it with specc.runtime.grammar"
        )
    if not 0 <= grammar.start < states:
        raise ConfigError(f"grammar: starts in state {grammar.start} of {states}; build it with specc.runtime.grammar")
    ends = [int(grammar.token_class[token]) for token in eos]
    if not bool((grammar.next.view(states, -1)[:, ends] >= 0).any()):
        raise ConfigError(
            f"grammar was built for other ids that end a text than eos_token_id {list(eos)}; build it with these"
        )
