"""What a text may be, from a regular expression or a JSON schema to the table that a step reads.

An expression or a schema becomes a regular language over bytes (`languages.py`), that the smallest automaton over bytes
(`byte_automaton.py`), and that, with the bytes of every token, one over tokens (`token_table.py`).
"""

from .build import LIMIT, Grammar, compile_json_schema, compile_regex

__all__ = ["LIMIT", "Grammar", "compile_json_schema", "compile_regex"]
