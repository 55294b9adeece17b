"""What there is to learn from: files of answers and their features, which are made as the files appear."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..progress import Report
from .answers import KEEP
from .features import Reader, Sample, read_features, write_features
from .progress import training_bar
from .read_data import answer_files, read_rows

PART = 32  # rows of a file of features: what a kill loses
SHORTEST = 5  # tokens of an answer that is learnt from


def one_in(count: int) -> Callable[[Sample], bool]:
    """A choice of one in so many rows by what they say: the same ones in every run, whatever files came with them."""
    return lambda row: zlib.crc32(row.ids.numpy().tobytes()) % count == 0


class Data:
    """Rows of all files.

    Args:
        paths: files and folders of answers.
        folder: where features go.
        tokenizer: the target's.
        reader: the target.
        longest: tokens of a row; the rest is cut off.
        report: where the progress is shown.
        apart: which rows are held out.
    """

    def __init__(
        self,
        paths: list[Path],
        folder: Path,
        tokenizer: Any,
        reader: Reader,
        longest: int,
        report: Report,
        apart: Callable[[Sample], bool] = lambda row: False,
    ) -> None:
        self.paths, self.folder, self.tokenizer, self.reader = paths, folder, tokenizer, reader
        self.longest, self.report, self.apart = longest, report, apart
        self.samples: list[Sample] = []
        self.taken: set[Path] = set()

    def refresh(self) -> list[Sample]:
        """All rows to learn from that there are by now."""
        for path in answer_files(self.paths):
            if path not in self.taken:
                self._take(path)
                self.taken.add(path)
        return [sample for sample in self.samples if not self.apart(sample)]

    def held(self) -> list[Sample]:
        """The rows held out."""
        return [sample for sample in self.samples if self.apart(sample)]

    def _take(self, path: Path) -> None:
        rows = [row.cut(self.longest) for row in read_rows(path, self.tokenizer)]
        for number, row in enumerate(rows):
            if (wrong := row.outside(self.reader.vocab_size)) is not None:
                last = self.reader.vocab_size - 1
                raise ConfigError(
                    f"--data {path}: row {number} has id {wrong}, and the target's are 0..{last}; give ids of its own "
                    "tokenizer"
                )
        rows = [row for row in rows if len(row.ids) - row.skip >= SHORTEST]
        with path.open("rb") as file:  # another file under the same name is not taken for the old one
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        with training_bar(self.report) as bar:
            task = bar.add_task(f"features of {path.name}", total=sum(len(row.ids) for row in rows), note="")
            for at in range(0, len(rows), PART):
                part = rows[at : at + PART]
                made = self.folder / f"{path.stem}-{digest}-{at:06d}.safetensors"
                if not made.exists():
                    write_features(made, part, self.reader, KEEP, lambda n: bar.advance(task, n))
                self.samples += read_features(made)
