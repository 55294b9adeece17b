"""Models in: load a causal language model, capture it as a graph, prove that the graph is the model.

The only place that may import transformers.
"""

from __future__ import annotations

from .export import capture
from .load import LoadedModel, load_model
from .proof import prove, prove_rows
from .source import digest_source
from .text import save_text_files
from .vocabulary import match_vocabularies

__all__ = [
    "LoadedModel",
    "capture",
    "digest_source",
    "load_model",
    "match_vocabularies",
    "prove",
    "prove_rows",
    "save_text_files",
]
