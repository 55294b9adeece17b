"""Load a causal language model and its tokenizer."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError
from ..passes.inputs import EOS_SLOTS
from .finite import check_finite
from .rotary import positions_limit
from .source import Source, find_source
from .text import chat_template, end_ids, vocabulary

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model as transformers loads it, on the CPU, in evaluation mode.

    Attributes:
        model: the transformers model (`...ForCausalLM`).
        tokenizer: its fast tokenizer.
        config: configuration of the text part.
        eos_token_ids: ids that end a text: of generation_config, config, tokenizer, and the end of a chat turn.
        vocab_size: highest token id + 1; rows of the model above it are padding.
        max_positions: tokens of context that the model was made for.
        source: what the user gave.
        digest: SHA-256 of the files (`digest_source`).
        architecture: class name of the model.
        chat_template: Jinja text, or None.
    """

    model: Any
    tokenizer: Any
    config: Any
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_positions: int
    source: str
    digest: str
    architecture: str
    chat_template: str | None


def load_model(source: str, *, role: str, dtype: str) -> LoadedModel:
    """Load the model at `source`: a hub id, a transformers folder or a GGUF file.

    Args:
        source: what the user gave.
        role: `target` or `drafter`, for messages.
        dtype: one of `DTYPES`.

    Raises:
        CaptureError: there is no model, it is not a causal language model, or it has no fast tokenizer.
    """
    if dtype not in DTYPES:
        raise CaptureError(f"{role}: dtype {dtype!r} is not one of {', '.join(DTYPES)}; try --dtype float32")
    files = find_source(source, role=role)
    with quietly():
        tokenizer = _tokenizer(files, source, role)
        model = _model(files, source, role, DTYPES[dtype])
    config = model.config.get_text_config()
    vocab_size = len(vocabulary(tokenizer))
    rows = model.get_output_embeddings().weight.shape[0]
    if vocab_size > rows:
        token = vocabulary(tokenizer)[rows]
        raise CaptureError(
            f"{role}: {source} has {rows} rows of vocabulary and its tokenizer knows id {rows} ({token!r}); "
            "resize the model's embeddings or use its own tokenizer"
        )
    ends = tuple(i for i in end_ids(model, tokenizer) if 0 <= i < vocab_size)  # others are never emitted
    if role == "target" and len(ends) > EOS_SLOTS:
        raise CaptureError(
            f"{role}: {source} lists {len(ends)} ids that end a text and an engine can watch {EOS_SLOTS}; "
            "shorten eos_token_id in its generation_config.json"
        )
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        config=config,
        eos_token_ids=ends,
        vocab_size=vocab_size,
        max_positions=positions_limit(config),
        source=source,
        digest=files.digest(),
        architecture=type(model).__name__,
        chat_template=chat_template(tokenizer),
    )


def _tokenizer(files: Source, source: str, role: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(files.folder), gguf_file=files.gguf)
    except ImportError as e:
        raise CaptureError(f"{role}: reading {source} needs one more package: {_first_line(e)}") from e
    except Exception as e:  # transformers and tokenizers raise whatever the file made them stumble on
        if files.gguf:  # all of the file is looked over for its tokenizer
            size = (files.folder / files.gguf).stat().st_size
            raise CaptureError(
                f"{role}: {source} ({size} bytes) is truncated or damaged, or holds no tokenizer ({_first_line(e)}); "
                "fetch the file again"
            ) from e
        raise CaptureError(
            f"{role}: no tokenizer can be read from {source} ({_first_line(e)}); expected tokenizer.json there"
        ) from e
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CaptureError(
            f"{role}: {source} has only a slow tokenizer ({type(tokenizer).__name__}); add tokenizer.json"
        )
    return tokenizer


def _model(files: Source, source: str, role: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": False}
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `_check_whole` says it better
    if files.gguf is not None:
        options["gguf_file"] = files.gguf
    else:
        options |= {"use_safetensors": not files.pickled, "weights_only": True}
    try:
        model, told = AutoModelForCausalLM.from_pretrained(str(files.folder), **options)
    except ImportError as e:
        raise CaptureError(f"{role}: reading {source} needs one more package: {_first_line(e)}") from e
    except Exception as e:
        raise CaptureError(
            f"{role}: {source} cannot be loaded as a causal language model: {_first_line(e)}; "
            "fetch the model again or give another"
        ) from e
    _check_whole(told, source, role)
    check_finite(model.named_parameters(), source, role)
    if model.get_output_embeddings() is None:
        raise CaptureError(f"{role}: {source} ({type(model).__name__}) has no language-model head")
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # the default is an op that lives in transformers
    return model.to(dtype).eval()


def _check_whole(told: dict[str, Any], source: str, role: str) -> None:
    """Every weight of the model came from its files: transformers makes up those that it does not find."""
    if missing := sorted(told["missing_keys"]):
        raise CaptureError(
            f"{role}: {source} lacks {len(missing)} weights of its model ({missing[0]}); fetch the model again"
        )
    if other := sorted(told["mismatched_keys"]):
        name, found, expected = other[0]
        raise CaptureError(
            f"{role}: {source} holds {name} as {tuple(found)}, and its config.json asks for {tuple(expected)}; "
            "fetch the model again"
        )


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """No progress bars or advice of transformers and gguf while loading; their settings are put back."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # gguf's progress bar has no switch
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _first_line(e: Exception) -> str:
    return (str(e).strip() or type(e).__name__).splitlines()[0]
