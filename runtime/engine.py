"""Engine: a folder that was loaded, and what it can be asked for."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack
from weakref import ReferenceType

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ConfigError, EngineFormatError
from ..manifest import WEIGHTS_NAME, EngineManifest
from .backends import open_program
from .checks import AGAIN, check_device, check_files, check_processor, check_versions
from .generate import Generation, Session
from .request import Options, Request, whole
from .state import Runner
from .stream import Stream
from .text import Text

MAX_THREADS = 1024


def load(path: str | os.PathLike[str], device: str | torch.device | None = None, threads: int | None = None) -> Engine:
    """Load an engine that `specc compile` wrote. It holds native code: load only engines you trust.

    Args:
        path: the engine's folder.
        device: where to run, `cpu` or `cuda`; must be what it was compiled for, which is the default.
        threads: processor threads to use, for the whole process as `torch.set_num_threads`; None leaves them.

    Raises:
        EngineFormatError: no engine there, or a file of it is missing or changed.
        EngineVersionError: made by another format version or another torch.
        EngineMismatchError: made for another device or processor.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"the engine must be the path of a folder, not {path!r}")
    folder = Path(path)
    if threads is not None:
        threads = whole("threads", threads, 1, MAX_THREADS)
    manifest = EngineManifest.read(folder)
    check_versions(folder, manifest)
    where = check_device(folder, manifest, device)
    check_processor(folder, manifest)
    check_files(folder, manifest)
    weights = _map_weights(folder / WEIGHTS_NAME, where)
    for name in {name for spec in manifest.programs.values() for name in spec.weights} - set(weights):
        raise EngineFormatError(f"{folder}: {WEIGHTS_NAME} lacks {name}; {AGAIN.format(folder)}")
    programs = {
        name: open_program(manifest.backend, folder / spec.file, spec, weights, where)
        for name, spec in manifest.programs.items()
    }
    return Engine(manifest, programs, Text.read(folder), where, threads=threads)


class Engine:
    """A target model and its drafter, ready to generate. Made by `load`.

    One text is generated at a time: other threads wait for their turn.

    Attributes:
        manifest: what the engine is.
        text: tokenizer and chat template; None where the engine has none, and takes ids only.
        session: the text that the engine holds.
    """

    def __init__(
        self,
        manifest: EngineManifest,
        programs: Mapping[str, Runner],
        text: Text | None,
        device: torch.device,
        threads: int | None = None,
    ) -> None:
        self.manifest, self.text, self.device, self.threads = manifest, text, device, threads
        self.session = Session(manifest, programs, device)
        self._lock = threading.Lock()
        self._holder: tuple[int | None, ReferenceType[Stream] | None] = (None, None)

    def generate(
        self,
        prompt: str | Iterable[int],
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        acceptance: str | None = None,
        draft_length: int | None = None,
        eos_token_id: int | Iterable[int] | None = None,
    ) -> Generation:
        """Generate the continuation of a prompt.

        Args:
            prompt: text or token ids. A chat template is not applied: see `chat`.
            max_new_tokens: the most tokens to emit.
            temperature: 0 is greedy; above, tokens are drawn from the model's distribution at that temperature.
            top_k: draw from the k likeliest tokens only; None or 0 from all.
            top_p: draw from the likeliest tokens that together reach this probability.
            seed: the same seed gives the same text; None takes a new one, which the result reports.
            acceptance: `greedy`, `coupled` or `rejection`; None is greedy at temperature 0, else the engine's own.
            draft_length: tokens to draft per step; None is what the engine was compiled for, 0 does not speculate.
            eos_token_id: ids that end the text, `()` for none; None takes the model's.

        Raises:
            ConfigError: a parameter is out of range, or this engine cannot honour it.
        """
        stream = self._stream(
            prompt,
            False,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            acceptance=acceptance,
            draft_length=draft_length,
            eos_token_id=eos_token_id,
        )
        return stream.finish()

    def stream(self, prompt: str | Iterable[int], **options: Unpack[Options]) -> Stream:
        """Generate as `generate` does, piece by piece: `for piece in engine.stream(...)`.

        It starts at the first piece. Until it has been read to its end or closed, other threads wait; another call in
        the same thread ends it.
        """
        if self.text is None:
            raise ConfigError("this engine has no tokenizer, so it cannot stream text; use generate() with token ids")
        return self._stream(prompt, False, **options)

    def resume(self, prompt: str | Iterable[int] = (), **options: Unpack[Options]) -> Generation:
        """Go on with the text that the engine holds (the last generation, or what `truncate` left), `prompt` appended.

        Raises:
            ConfigError: as `generate`; also if there is no text.
        """
        return self._stream(prompt, True, **options).finish()

    def truncate(self, total: int) -> None:
        """Keep the first `total` tokens of the text that the engine holds, prompt included."""
        with self.turn():
            self.session.truncate(total)

    @property
    def token_ids(self) -> list[int]:
        """The text that the engine holds, prompt included."""
        return list(self.session.ids)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Ids of a text; `special` adds the tokens that the model expects around one (a BOS id, say)."""
        return self._tokenizer().encode(text, special)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, without special tokens."""
        return self._tokenizer().decode(ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        return self.text is not None and self.text.has_chat_template

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Ids of a conversation in the model's chat template, ready for `generate`; a text alone is the user's turn."""
        text = self._tokenizer()
        return text.encode(text.chat(messages, **variables), special=False)

    def _tokenizer(self) -> Text:
        if self.text is None:
            raise ConfigError("this engine has no tokenizer; give token ids instead of text")
        return self.text

    def _stream(self, prompt: str | Iterable[int], resume: bool, **options: Unpack[Options]) -> Stream:
        ids = self.encode(prompt, special=not resume) if isinstance(prompt, str) else prompt
        known = len(self.session.ids) if resume else 0
        return Stream(self, Request.make(self.manifest, ids, known, **options), resume)

    def blocks(self, request: Request, resume: bool) -> Iterator[list[int]]:
        """The generation itself; the caller has the turn."""
        if resume:  # another thread may have changed the text since the request was made
            Request.make(self.manifest, request.prompt, len(self.session.ids))
        else:
            self.session.reset()
        if self.threads is not None and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        return self.session.blocks(request)

    @contextmanager
    def turn(self, stream: ReferenceType[Stream] | None = None) -> Iterator[None]:
        """One generation at a time. A thread that would wait for a stream of its own ends that stream instead."""
        me = threading.get_ident()
        thread, held = self._holder
        if thread == me and held and (earlier := held()):
            earlier.supersede()
        with self._lock:
            self._holder = (me, stream)
            try:
                yield
            finally:
                self._holder = (None, None)


def _map_weights(path: Path, device: torch.device) -> dict[str, Tensor]:
    """Every stored weight; on the CPU mapped from the file, which costs no memory of its own."""
    try:
        with safe_open(path, framework="pt", device=device.type if device.type == "cpu" else str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as e:
        raise EngineFormatError(f"{path}: not readable as safetensors ({e}); {AGAIN.format(path.parent)}") from e
