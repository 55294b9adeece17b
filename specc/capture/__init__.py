"""Models in: load a causal language model, capture it as a graph, prove that the graph is the model.

The only place that may import transformers.
"""

from __future__ import annotations

from .checkpoint import digest_drafter
from .checkpoint_kind import check_whole
from .export import capture
from .feature_drafter import FeatureDrafter, capture_drafter, load_feature_drafter
from .kept_layers import kept_layers
from .load import LoadedModel, load_model
from .proof import prove, prove_rows
from .source import digest_source
from .text import save_text_files
from .vocabulary import match_vocabularies

__all__ = [
    "FeatureDrafter",
    "LoadedModel",
    "capture",
    "capture_drafter",
    "check_whole",
    "digest_drafter",
    "digest_source",
    "kept_layers",
    "load_feature_drafter",
    "load_model",
    "match_vocabularies",
    "prove",
    "prove_rows",
    "save_text_files",
]
