"""Records of `source: preference`: a prompt with a preferred and a rejected completion.

The fields are those of TRL's preference datasets: `prompt`, `chosen` and `rejected`, each a text or
a list of messages.

References:
    https://huggingface.co/docs/trl/dataset_formats
"""

from typing import NamedTuple

from trainer.contract.config.data import Data
from trainer.data.chat import Chats, Conversation, check_last, messages
from trainer.data.readers import BadRecordError, Record, text, value

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"


class Pair(NamedTuple):
    """Two conversations with the same prompt, in which only the completions are learned."""

    chosen: Conversation
    rejected: Conversation


class Preferences:
    """Reads the records of a source. Raises DataError for a template that is not valid Jinja."""

    def __init__(self, data: Data) -> None:
        self._chats = Chats(data)

    def read(self, record: Record) -> Pair:
        """Returns a record's pair. Raises BadRecordError when it has none."""
        return Pair(self._completed(record, CHOSEN), self._completed(record, REJECTED))

    def _completed(self, record: Record, field: str) -> Conversation:
        """Returns the prompt with a completion. Texts follow each other without a template."""
        if not isinstance(value(record, PROMPT), list):
            prompt, completion = text(record, PROMPT), text(record, field)
            return self._without_separators(len(prompt), prompt + completion)
        asked, answered = messages(record, PROMPT), messages(record, field)
        check_last(answered, field)
        before = self._chats.rendered(asked, asks=True)
        whole = self._chats.rendered([*asked, *answered])
        if not whole.startswith(before):
            raise BadRecordError(
                f"cannot locate {field!r}: the chat template renders the prompt differently with a "
                "generation prompt"
            )
        return self._without_separators(len(before), whole)

    def _without_separators(self, begin: int, whole: str) -> Conversation:
        """Returns a conversation whose completion starts at `begin`.

        A template may write the end-of-text token at both ends. It is removed there: a separator
        precedes and follows each text in the stream.
        """
        separator = self._chats.eos_token
        first, last = 0, len(whole)
        if separator and whole.startswith(separator):
            first = min(len(separator), begin)
        if separator and whole.rstrip().endswith(separator):
            last = max(len(whole.rstrip()) - len(separator), begin)
        self._chats.reject_separators(whole[first:last])
        return self._chats.conversation(whole[first:last], [(begin - first, last - first)])
