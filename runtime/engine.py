"""Engine: a folder that was loaded, and what it can be asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

import torch

from ..errors import ConfigError
from ..manifest import EngineManifest
from .calibrate import time_programs
from .call import Runner
from .chat import Chat
from .options import Options
from .pilot import Pilot
from .recorded import Recorder
from .request import Prompt, Request, split_prompts
from .result import Generation
from .session import Session
from .step import Apart, Machine
from .stream import Stream
from .streams import Streams
from .text import Text
from .turn import Turns
from .watch import Watch


class Engine:
    """A target model and its drafter, ready to generate. Made by `load`.

    Threads take turns: each waits until the generation, stream or session of another has ended.

    Attributes:
        manifest: what the engine is.
        text: tokenizer and chat template; None where the engine has none, and takes ids only.
        pilot: chooses what is drafted; None in an engine whose costs were not measured.
        machine: the engine's state, and the texts in it.
        streams: where all of its work goes, on a GPU.
    """

    def __init__(
        self,
        manifest: EngineManifest,
        programs: Mapping[str, Runner],
        text: Text | None,
        device: torch.device,
        threads: int | None = None,
        recorder: Recorder | None = None,
        apart: Apart | None = None,
    ) -> None:
        self.manifest, self.text, self.device, self.threads = manifest, text, device, threads
        self.streams = Streams(device, *([apart.device] if apart else []))
        with self.streams.current():
            self.machine = Machine(manifest, programs, device, recorder, apart)
        self.pilot = Pilot.of(manifest, self.machine.programs)
        self.watch = Watch(len(manifest.tree_paths[-1]))
        self.turns = Turns()

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self, prompt: str | Prompt, **options: Unpack[Options]
    ) -> Generation: ...
    @overload
    def generate(self, prompt: Sequence[str] | Sequence[Prompt], **options: Unpack[Options]) -> list[Generation]: ...
    def generate(self, prompt: Any, **options: Unpack[Options]) -> Generation | list[Generation]:
        """Generate the continuation of a prompt, or of several side by side.

        Each text is what it would be alone: a neighbour changes nothing but the time. More prompts than the engine has
        rows wait for their turn.

        Args:
            prompt: text or token ids, or a list of such. A chat template is not applied: see `chat`.
            options: those below; `temperature=0.7`, say.

        Options:
            max_new_tokens: the most tokens to emit (256).
            min_new_tokens: no end-of-text id comes before so many (0). Stop strings may end the text earlier.
            temperature: 0 is greedy; above, tokens are drawn from the model's distribution at that temperature (0).
            top_k: draw from the k likeliest tokens only; None or 0 from all.
            top_p: draw from the likeliest tokens that together reach this probability.
            min_p: draw from tokens at least this likely, as a share of the likeliest one's probability.
            repetition_penalty: above 1 makes tokens of the prompt and of the new text less likely (1).
            presence_penalty, frequency_penalty: taken off the logits of tokens of the new text, once, and for each
                time that they came; in -2..2 (0).
            logit_bias: dict of token id to what is added to its logit; -inf bans it.
            bad_token_ids, allowed_token_ids: ids that may not come; the only ones that may.
            stop: a string or a list of them; the text ends before the first one that comes.
            eos_token_id: ids that end the text, `()` for none; None takes the model's.
            grammar, regex, json_schema: what the whole new text must be; an automaton of `specc.runtime.grammar`, a
                regular expression, or a JSON schema.
            logprobs: report the log-probability of every new token, and of so many alternatives, 0..20.
            logprobs_mode: of the model's own distribution (`raw`), or of the one that was drawn from (`processed`).
            n: samples of each prompt; above 1 the result is a list.
            seed: the same seed gives the same text; None takes a new one for each prompt, which the result reports.
            acceptance: `greedy`, `coupled`, `rejection` or `typical` (lossy, as the result says); None is greedy at
                temperature 0, else the engine's own, which is never lossy. A step that does not draft accepts nothing:
                with draft_length 0 `rejection` and `typical` are refused.
            draft_length: tokens to draft per step; 0 does not speculate. None chooses, step by step, between a plain
                step and what the engine was compiled for, by how this text's drafts fare and what each costs: never
                slower than without speculation. It is what the engine was compiled for under `rejection` and `typical`,
                whose text depends on what is drafted, and in engines whose costs were not measured (see `calibrate`).
            reuse: keep what an earlier text has in common with the prompt, instead of running that part again (False).

        Returns:
            A `Generation`; for a list of prompts, or `n` above 1, a list of them in order, all samples of the first
            prompt first.

        Raises:
            ConfigError: an option is unknown, out of range, or this engine cannot honour it. Nothing has run then.
        """
        prompts = split_prompts(prompt)
        ids = [self.ids_of(one) for one in ([prompt] if prompts is None else prompts)]
        requests = Request.make_all(self.manifest, ids, self.text, **options)
        with Session(self, "generation") as session:
            results = session.run(requests)
        return results[0] if prompts is None and len(results) == 1 else results

    def stream(self, prompt: str | Prompt, **options: Unpack[Options]) -> Stream:
        """Generate as `generate` does, piece by piece: `for piece in engine.stream(...)`.

        It starts at the first piece. Until it has been read to its end or closed, other threads wait; another call in
        the same thread ends it.
        """
        if self.text is None:
            raise ConfigError("this engine has no tokenizer, so it cannot stream text; use generate() with token ids")
        request = Request.make(self.manifest, self.ids_of(prompt), text=self.text, **options)
        if request.n > 1:
            raise ConfigError(f"n {request.n}: a stream is one text; use generate(), or session() and step()")
        return Stream(self, request)

    def session(self) -> Session:
        """Texts that join, advance and leave one by one, up to the engine's rows: what a server needs.

        It takes the engine at once and holds it until it is closed: `with engine.session() as session:`.
        """
        return Session(self)

    def resume(self, prompt: str | Prompt = (), **options: Unpack[Options]) -> Generation:
        """Go on with the text that the engine holds (the last generation, or what `truncate` left), `prompt` appended.

        Raises:
            ConfigError: as `generate`; also if there is no text.
        """
        request = self._next(prompt, **options)
        with Session(self, "generation") as session:
            job = session.start(request, resume=True)
            for _ in session:
                pass
        assert job.result
        return job.result

    def step(self, draft: Sequence[int] = (), **options: Unpack[Options]) -> Generation:
        """One step of the text that the engine holds, for tests: what it emits, with `finish_reason` `step`.

        Args:
            draft: tokens to draft at nodes 1, 2, ... of the draft tree; -1, and what is not given, is the drafter's.
            options: as `generate` takes them.
        """
        request = dataclasses.replace(self._next((), **options), adaptive=False)
        with Session(self, "step") as session:
            job = session.start(request, resume=True)
            session.step(draft)
            if job.result is None:
                job.end("step")
        assert job.result
        return job.result

    def truncate(self, total: int) -> None:
        """Keep the first `total` tokens of the text that the engine holds, prompt included."""
        with self.turns.take():
            self.machine.last.truncate(total)

    def calibrate(self) -> None:
        """Time every program again, here and now, for what `draft_length=None` chooses by.

        Worth its few seconds on a machine that is not the one that compiled the engine: `load` takes the times that
        were measured there, whatever the processor. The engine's folder is not changed, and the texts that the engine
        holds are forgotten.
        """
        with self.turns.take():
            self.settle_threads()
            with self.streams.current():
                cost = time_programs(self.machine, self.manifest)
        self.manifest = dataclasses.replace(self.manifest, cost={**self.manifest.cost, **cost})
        self.pilot = Pilot.of(self.manifest, self.machine.programs)

    def settle_threads(self) -> None:
        """Use as many threads as `load` was told."""
        if self.threads is not None and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    @property
    def token_ids(self) -> list[int]:
        """The text that the engine holds (that of the last generation), prompt included."""
        return list(self.machine.last.ids)

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

    def conversation(self, system: str | None = None, **options: Unpack[Options]) -> Chat:
        """A conversation, turn by turn: `for piece in chat.say("Hello")`.

        Args:
            system: a system prompt, for models whose template has one.
            options: of every answer, as `generate` takes them; `reuse` is on.

        Raises:
            ConfigError: there is no chat template, or as `generate`.
        """
        return Chat(self, system, **options)

    def _tokenizer(self) -> Text:
        if self.text is None:
            raise ConfigError("this engine has no tokenizer; give token ids instead of text")
        return self.text

    def ids_of(self, prompt: str | Prompt, special: bool = True) -> Prompt:
        """Ids of a prompt that may be a text; else it is given back as it is.

        Raises:
            ConfigError: there is a text, and no tokenizer, or it makes no token of it.
        """
        if not isinstance(prompt, str):
            return prompt
        ids = self.encode(prompt, special)
        if prompt and not ids:
            raise ConfigError(f"the tokenizer makes no token of the prompt {prompt!r}; it may not know its characters")
        return ids

    def _next(self, prompt: str | Prompt, **options: Unpack[Options]) -> Request:
        """A request that goes on with the text that the engine holds."""
        known = len(self.machine.last.ids)
        request = Request.make(self.manifest, self.ids_of(prompt, special=False), known, self.text, **options)
        if request.n > 1:
            raise ConfigError(
                f"n {request.n}: the engine goes on with one text; use generate() for samples of a prompt"
            )
        return request
