"""`tokenizer: {train: N}`: a byte-level BPE of N tokens, trained on the training documents.

Every host gets the same tokenizer. The documents have one order, ties between merges are broken by
their ids, and nothing depends on the number of threads. It is cached beside the tokens.

References:
    Byte-pair encoding: https://arxiv.org/abs/1508.07909
    Bytes as its alphabet: GPT-2 (Radford et al., "Language models are unsupervised multitask
    learners", 2019).
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
from trainer.data.documents import BadRecords, HeldOut, documents, hash_to_unit

TEXT_BYTES = 1 << 30
"""Limit on text to train on: of a larger corpus, the first part of each document is used, since
more text hardly changes the merges."""
SEEN_TWICE = 2
"""Minimum frequency: a pair that occurs once in the corpus becomes no token."""


def load(parts: Sequence[Data], sha256: str, progress: Progress) -> str:
    """Returns the text of a `tokenizer.json`, cached or trained now.

    `sha256` is the hash of all the corpora. Raises DataError.
    """
    key = hashlib.sha256(f"{sha256} {parts[0].validation_fraction}".encode()).hexdigest()[:32]
    path = cache_folder() / "tokenizers" / f"{key}.json"
    if not path.exists():
        make_cache_folder(path.parent.name)
        with cache_lock.held(path.with_suffix(".lock"), progress) as publish:
            if not path.exists():
                _write(path, _train(parts, cache_lock.report_to_both(publish, progress)))
    return path.read_text(encoding="utf-8")


def _train(parts: Sequence[Data], report: cache_lock.Report) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    known = vocabulary(parts[0])
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[misc]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[misc]
    trainer = trainers.BpeTrainer(
        vocab_size=known.size,
        min_frequency=SEEN_TWICE,
        special_tokens=[known.eos_token],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_texts(parts, report), trainer)
    if (size := bpe.get_vocab_size()) < known.size:
        raise DataError(
            f"data.tokenizer.train is {known.size:,}, but the training documents yield only "
            f"{size:,} tokens. Set it to {size} or add text"
        )
    # The separator opens every text, as in training.
    bpe.post_processor = processors.TemplateProcessing(  # type: ignore[misc]
        single=f"{known.eos_token} $A",
        pair=f"{known.eos_token} $A {known.eos_token} $B:1",
        special_tokens=[(known.eos_token, known.eos_id)],
    )
    return bpe.to_str(pretty=True)


def _texts(parts: Sequence[Data], report: cache_lock.Report) -> Iterator[str]:
    """Yields the text to train on; reads all twice, as all names decide what is held out."""
    sizes = [sum(file.size for file in corpus.files(data)) for data in parts]
    total, before = sum(sizes), 0
    share = min(1.0, TEXT_BYTES / max(total, 1))
    for data, size in zip(parts, sizes, strict=True):
        held_out = HeldOut(data.validation_fraction)
        for document in documents(data, BadRecords(data.max_bad_records)):
            held_out.add(hash_to_unit([document.name]))
            report(before + document.end.read, 2 * total)
        threshold = held_out.threshold
        for document in documents(data, BadRecords(data.max_bad_records)):
            if hash_to_unit([document.name])[0] >= threshold:
                part = document.text[: int(len(document.text) * share)]
                yield part.decode("utf-8", errors="replace")
            report(before + size + document.end.read, 2 * total)
        before += 2 * size


def _write(path: Path, content: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(content, encoding="utf-8")
    unfinished.rename(path)
