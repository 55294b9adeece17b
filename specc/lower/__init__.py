"""The final graph to an artefact."""
