"""`tokenizer: {train: N}`: a byte-level BPE of N tokens, trained on the training documents.

Every host gets the same tokenizer. The documents have one order, ties between merges are broken by
their ids, and nothing depends on the number of threads. It is cached beside the tokens.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.contract.config.data import Data
from trainer.contract.storage import corpus
from trainer.contract.storage.cache_dirs import cache_folder, make_cache_folder
from trainer.contract.storage.corpus import DataError
from trainer.contract.storage.tokenizer_info import vocabulary
from trainer.data import cache_lock
from trainer.data.cache_lock import Progress
from trainer.data.documents import BadRecords, HeldOut, documents, places

TEXT_BYTES = 1 << 30
"""Limit on text to train on: of a larger corpus, the first part of each document is used, since
more text hardly changes the merges."""
SEEN_TWICE = 2
"""Minimum frequency: a pair that occurs once in the corpus becomes no token."""


def load(parts: Sequence[Data], sha256: str, progress: Progress) -> str:
    """Returns the text of a `tokenizer.json`, cached or trained now.

    `sha256` is the hash of all the corpora. Raises DataError.
    """
    key = hashlib.sha256(f"{sha256} {parts[0].held_out}".encode()).hexdigest()[:32]
    path = cache_folder() / "tokenizers" / f"{key}.json"
    if not path.exists():
        make_cache_folder(path.parent.name)
        with cache_lock.held(path.with_suffix(".lock"), progress) as tell_others:
            if not path.exists():
                _write(path, _train(parts, cache_lock.both(tell_others, progress)))
    return path.read_text(encoding="utf-8")


def _train(parts: Sequence[Data], tell: cache_lock.Tell) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    known = vocabulary(parts[0])
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[misc]
    made.decoder = decoders.ByteLevel()  # type: ignore[misc]
    trainer = trainers.BpeTrainer(
        vocab_size=known.size,
        min_frequency=SEEN_TWICE,
        special_tokens=[known.separator_text],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(_texts(parts, tell), trainer)
    if (size := made.get_vocab_size()) < known.size:
        raise DataError(
            f"data.tokenizer.train: the training documents give {size:,} tokens, asked for are "
            f"{known.size:,}: take {size}, or more text"
        )
    # The separator opens every text, as in training.
    made.post_processor = processors.TemplateProcessing(  # type: ignore[misc]
        single=f"{known.separator_text} $A",
        pair=f"{known.separator_text} $A {known.separator_text} $B:1",
        special_tokens=[(known.separator_text, known.separator)],
    )
    return made.to_str(pretty=True)


def _texts(parts: Sequence[Data], tell: cache_lock.Tell) -> Iterator[str]:
    """Yields the text to train on; reads all twice, as all names decide what is held out."""
    sizes = [sum(file.size for file in corpus.files(data)) for data in parts]
    total, before = sum(sizes), 0
    share = min(1.0, TEXT_BYTES / max(total, 1))
    for data, size in zip(parts, sizes, strict=True):
        held_out = HeldOut(data.held_out)
        for document in documents(data, BadRecords(data.max_bad_records)):
            held_out.add(places([document.name]))
            tell(before + document.end.read, 2 * total)
        threshold = held_out.threshold
        for document in documents(data, BadRecords(data.max_bad_records)):
            if places([document.name])[0] >= threshold:
                part = document.text[: int(len(document.text) * share)]
                yield part.decode("utf-8", errors="replace")
            tell(before + size + document.end.read, 2 * total)
        before += 2 * size


def _write(path: Path, content: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.rename(path)
