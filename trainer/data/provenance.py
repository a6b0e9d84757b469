"""Which documents an example comes from: their names, files, lines, and the tokens of each."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from trainer.contract.config.data import Data
from trainer.contract.storage import corpus
from trainer.contract.storage.corpus import File
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.data.token_shards import Stream


class DocumentPart(NamedTuple):
    """Consecutive inputs of an example that belong to one document."""

    source: str
    """Name of its source in a mixture; "" for one corpus."""
    document: str
    """Name of the document; for files of tokens that of the file."""
    file: str
    """Path of the file."""
    line: int | None
    """Line or row in the file, from 1; None when the file is the document, or has tokens."""
    first: int
    """The part's first token in the document, from 0: the separator before the text."""
    start: int
    """The part's first input in the example."""
    stop: int
    """The input after its last one."""


class Provenance:
    """Finds the documents of examples, by their number in the corpus."""

    def __init__(self, tokens: Tokens | Mixture, data: Data) -> None:
        pairs = zip(tokens.parts, data.parts, tokens.names, strict=True)
        self._sources = [_Source(*pair, data.seq_len) for pair in pairs]
        sizes = [part.sequences(data.seq_len) for part in tokens.parts]
        self._firsts = [0, *accumulate(sizes)]

    def parts(self, number: int) -> list[DocumentPart]:
        """Returns the parts of an example, in their order in it."""
        source = bisect(self._firsts, number) - 1
        return self._sources[source].parts(number - self._firsts[source])

    def text(self, number: int, part: DocumentPart) -> str:
        """Returns the text of a part, which may begin and end inside a character."""
        source = bisect(self._firsts, number) - 1
        return self._sources[source].text(number - self._firsts[source], part)


@dataclass(frozen=True)
class _Source:
    """One corpus."""

    tokens: Tokens
    data: Data
    name: str
    seq_len: int

    @cached_property
    def _files(self) -> Sequence[File]:
        return corpus.files(self.data)

    def parts(self, number: int) -> list[DocumentPart]:
        inputs = self.tokens.inputs(number, self.seq_len)
        begin, length = inputs.start, inputs.stop - inputs.start
        if self.tokens.documents is None:
            return list(self._parts_of_files(begin))
        table = self.tokens.documents
        index = bisect(range(len(table)), begin, key=lambda row: int(table[row, 0])) - 1
        found, start = list[DocumentPart](), 0
        while start < length:
            first, file, line = map(int, table[index])
            after = int(table[index + 1, 0]) if index + 1 < len(table) else self.tokens.count
            stop = min(after - begin, length)
            if stop > start:
                found.append(self._part(file, line, begin + start - first, start, stop))
            start, index = stop, index + 1
        return found

    def _parts_of_files(self, begin: int) -> list[DocumentPart]:
        """Returns the parts of an example of token files, whose documents have no names."""
        stream, found, start = self.tokens.held_in, list[DocumentPart](), 0
        assert isinstance(stream, Stream)
        while start < self.seq_len:
            file, position, left = stream.file(begin + start)
            stop = min(start + left, self.seq_len)
            found.append(self._part(file, 0, position, start, stop))
            start = stop
        return found

    def _part(self, number: int, line: int, first: int, start: int, stop: int) -> DocumentPart:
        file = self._files[number]
        name = f"{file.name}:{line}" if line else file.name
        return DocumentPart(self.name, name, str(file.path), line or None, first, start, stop)

    def text(self, number: int, part: DocumentPart) -> str:
        begin = self.tokens.inputs(number, self.seq_len).start
        given = self.tokens.held_in[begin + part.start : begin + part.stop].astype(np.int64)
        known = np.where(given < 0, ~given, given)
        return self.tokens.tokenizer.decode(
            [int(token) for token in known if token != self.tokens.tokenizer.eos_id]
        )
