"""Files of a small tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = ["the cat sat on the mat", "the dog sät on the log", "a cat and a dog"]
END = "<|endoftext|>"


def make(folder: Path, end: str = END, size: int = 270) -> Path:
    """A byte-level BPE of these texts."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[misc]
    made.decoder = decoders.ByteLevel()  # type: ignore[misc]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path
