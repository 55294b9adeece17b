"""Models in: load a causal language model, capture it as a graph, prove that the graph is the model.

The only place that may import transformers.
"""

from __future__ import annotations

from .compare import compare_tokenizers
from .export import capture
from .load import LoadedModel, load_model
from .proof import prove, prove_rows
from .source import digest_source
from .text import save_text_files

__all__ = [
    "LoadedModel",
    "capture",
    "compare_tokenizers",
    "digest_source",
    "load_model",
    "prove",
    "prove_rows",
    "save_text_files",
]
