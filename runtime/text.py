"""Text: a thin layer over `tokenizers`. Encode, decode, whole characters when streaming, chat templates."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from ..errors import BackendError, ConfigError, EngineFormatError

TOKENIZER_NAME = "tokenizer.json"
TEXT_NAME = "text.json"
BROKEN = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character


class Text:
    """The tokenizer of an engine, with its chat template.

    Attributes:
        special: `text.json`: `chat_template`, and `special_tokens` by the names that the template reads.
    """

    def __init__(self, tokenizer: Tokenizer, special: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self.tokenizer.no_padding()  # both may have been saved with it, and would change a prompt silently
        self.tokenizer.no_truncation()
        self.special = dict(special or {})

    @classmethod
    def read(cls, engine: Path) -> Text | None:
        """The tokenizer in an engine folder; None where it has none.

        Raises:
            EngineFormatError: a file is there and cannot be read.
        """
        path, extra = engine / TOKENIZER_NAME, engine / TEXT_NAME
        if not path.is_file():
            return None
        try:
            tokenizer = Tokenizer.from_file(str(path))
            special = json.loads(extra.read_text(encoding="utf-8")) if extra.is_file() else {}
        except Exception as e:  # tokenizers raises plain Exception
            raise EngineFormatError(f"{engine}: its tokenizer cannot be read ({e}); compile the engine again") from e
        return cls(tokenizer, special)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text; with `special`, those that the model expects around it (a BOS id, say) too.

        Raises:
            ConfigError: it is no text, or holds halves of characters (bytes that were not UTF-8, say).
        """
        if not isinstance(text, str):
            raise ConfigError(f"expected a text, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise ConfigError(f"the text has a broken character at {e.start} ({text[e.start]!r}); give UTF-8") from e
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, without special tokens; ids that the tokenizer does not know have none.

        Raises:
            ConfigError: they are no ids.
        """
        try:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        except (TypeError, OverflowError) as e:
            raise ConfigError(f"expected a list of token ids, 0 or more each, to decode: {e}") from e

    def special_in(self, text: str) -> tuple[str, int] | None:
        """A special token whose name stands in a text, and its id: `decode` leaves it out."""
        for index, token in self.tokenizer.get_added_tokens_decoder().items():
            if token.special and token.content in text:
                return token.content, index
        return None

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self._template() is not None

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The model's chat template around messages (a text alone is the user's), ready for the answer.

        Its special tokens are in the text, so encode it with `special=False`.

        Args:
            messages: `{"role": ..., "content": ...}` each.
            variables: what else the template reads (`tools`, `enable_thinking`, ...).

        Raises:
            ConfigError: there is no template, or it rejects the messages.
            BackendError: jinja2 is not installed.
        """
        template = self._template()
        if template is None:
            raise ConfigError("this engine's model has no chat template; give the prompt as plain text (--raw)")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
            raise ConfigError(f"chat: expected a text or a list of messages with role and content, not {messages!r}")
        for i, message in enumerate(messages):
            needed = ("role",) if "tool_calls" in message else ("role", "content")
            missing = [name for name in needed if name not in message]
            if missing:
                raise ConfigError(f"chat: messages[{i}] has no {' and no '.join(missing)}: {message!r}")
        if not messages:
            raise ConfigError("chat: there are no messages; give at least one, with role and content")
        tokens = self.special.get("special_tokens") or {}
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens, **variables}
        return _render(template, {"messages": list(messages), **given})

    def _template(self) -> str | None:
        template = self.special.get("chat_template")
        if isinstance(template, list):  # several, as older tokenizers list them
            template = {entry["name"]: entry["template"] for entry in template}
        if isinstance(template, Mapping):
            template = template.get("default")
        return template if isinstance(template, str) else None


class TextStream:
    """Turns tokens into pieces of text that are never a broken character, and that join to the text of all tokens.

    Tokens are decoded in a window that starts at an earlier token, since a decoder may treat the first one otherwise
    (the space before a word). A piece is held back while it may be part of a character.
    (Where a model emits byte tokens that spell no character at all, some decoders take back the characters
    before them; what was handed out stays.)
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.window: list[int] = []
        self.sent = 0  # characters of the window's text that were handed out
        self.clean = 0  # tokens of the window up to which all was handed out

    def copy(self) -> TextStream:
        """One that goes on alone from here."""
        other = copy.copy(self)
        other.window = [*self.window]
        return other

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        self.window += ids
        whole = self.text.decode(self.window)
        stable = whole.rstrip(BROKEN)
        piece = stable[self.sent :]
        if len(whole) > len(stable):
            self.sent = max(self.sent, len(stable))
        elif piece:
            # All of it is out: the next window starts with this piece, so that it has something before it.
            start, self.clean = self.clean, len(self.window)
            if start:
                self.window, self.clean = self.window[start:], self.clean - start
                whole = self.text.decode(self.window)
            self.sent = len(whole)
        return piece

    def flush(self) -> str:
        """What was held back, broken or not; for the end."""
        piece = self.text.decode(self.window)[self.sent :]
        self.sent += len(piece)
        return piece


def _render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template as transformers does: sandboxed, with the functions and tags that templates use."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as e:
        raise BackendError("chat templates need jinja2; install it with pip install 'specc[chat]', or use --raw") from e

    class Generation(Extension):
        """`{% generation %}` marks the assistant's tokens for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012  # jinja2's own declaration

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

    def reject(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson  # jinja2's own escapes HTML
    environment.globals["raise_exception"] = reject
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(**variables)
    except (TemplateError, TypeError, ValueError, LookupError) as e:
        raise ConfigError(f"the model's chat template rejects these messages: {e}") from e
