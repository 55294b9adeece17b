"""A bound program to a file that PyTorch runs op by op: the eager back end."""

from __future__ import annotations

from pathlib import Path

from ..graph_text import write_node
from ..program import Program
from .graphs import write_lines


def lower(program: Program, path: Path) -> None:
    """Save a program as JSON, a node a line; weights are named, none is inside.

    It is not written by `torch.export.save`, whose files take seconds to read where this one takes a tenth of one.

    Args:
        path: the `.json` file to write; its folder exists.

    Raises:
        BackendError: the program holds a value that has no form in the file.
    """
    results = ["results", [node.name for node in program.values.values()]]
    nodes = [write_node(node) for node in program.graph.nodes if node.op != "output"]
    write_lines(path, {"name": program.name}, [*nodes, results])
