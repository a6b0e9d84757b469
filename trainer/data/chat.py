"""Records of `source: chat`: conversations as texts, in which only the answers are learned."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from trainer.contract.config.data import BYTES, Data
from trainer.contract.storage.chat_template import ChatTemplate, chat_template
from trainer.contract.storage.corpus import as_data_error
from trainer.contract.storage.tokenizer_info import vocabulary
from trainer.data.readers import BadRecordError, Record, text, value
from trainer.data.tokenizer import Span

if TYPE_CHECKING:
    from trainer.data.jinja_template import Template

USER, ASSISTANT = "user", "assistant"


class Conversation(NamedTuple):
    """A rendered conversation."""

    text: bytes
    answers: tuple[Span, ...]
    """Start and end of each answer in the text, in bytes."""


class Chats:
    """Reads the records of a source. Raises DataError for a template that is not valid Jinja."""

    def __init__(self, data: Data) -> None:
        self._fields = data.fields
        with as_data_error():
            template = chat_template(data)
            known = vocabulary(data)
        self._template = template and _compiled(template)
        self.eos_token = "" if data.tokenizer == BYTES else known.eos_token

    def read(self, record: Record) -> Conversation:
        """Returns a record's conversation. Raises BadRecordError when it has none."""
        if self._fields.prompt is None or self._fields.answer is None:
            found = messages(record, self._fields.messages)
            check_last(found, self._fields.messages)
            return self._answered(found)
        prompt, answer = text(record, self._fields.prompt), text(record, self._fields.answer)
        if self._template is None:
            return self.conversation(prompt + answer, [(len(prompt), len(prompt + answer))])
        asked, answered = (
            {"role": USER, "content": prompt},
            {"role": ASSISTANT, "content": answer},
        )
        return self._answered([asked, answered])

    def rendered(self, messages: Sequence[Record], asks: bool = False) -> str:
        """Renders messages: see `Template.render`."""
        if self._template is None:
            raise BadRecordError(
                "messages need a chat template, and the tokenizer has none (chat_template in the "
                "tokenizer_config.json beside it)"
            )
        return self._template.render(messages, asks)

    def _answered(self, messages: Sequence[Record]) -> Conversation:
        """Renders messages. An answer is what the template adds after its generation prompt."""
        whole, spans = self.rendered(messages), []
        for number, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                before = self.rendered(messages[:number], asks=True)
                through = self.rendered(messages[: number + 1])
                if not (whole.startswith(through) and through.startswith(before)):
                    raise BadRecordError(
                        f"cannot locate the answer: the chat template renders message {number + 1} "
                        "differently as the last message or with a generation prompt"
                    )
                spans.append((len(before), len(through)))
        return self.conversation(whole, spans)

    def conversation(self, whole: str, spans: Sequence[Span]) -> Conversation:
        """Returns a text with the spans of its answers, in characters.

        Raises BadRecordError when the end-of-text token occurs inside the text.
        """
        self.reject_separators(
            whole.strip().removeprefix(self.eos_token).removesuffix(self.eos_token)
        )
        in_bytes = [(len(whole[:a].encode()), len(whole[:b].encode())) for a, b in spans]
        return Conversation(whole.encode(), tuple(in_bytes))

    def reject_separators(self, text: str) -> None:
        """Raises BadRecordError when the end-of-text token occurs in a text."""
        if self.eos_token and self.eos_token in text:
            raise BadRecordError(
                f"the record contains {self.eos_token!r}, the document separator. Choose another "
                "data.eos_token or fix the record"
            )


def messages(record: Record, field: str) -> list[Record]:
    """Returns a field with messages. Raises BadRecordError when it is not a list of them."""
    found = value(record, field)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found) or not found:
        raise BadRecordError(f"{field!r} must be a non-empty list of messages")
    for number, message in enumerate(found, 1):
        try:
            for key in ("role", "content"):
                text(message, key)
        except BadRecordError as error:
            raise BadRecordError(f"message {number} of {field!r}: {error}") from None
    return found


def check_last(found: Sequence[Record], field: str) -> None:
    """Raises BadRecordError when the last of a field's messages is not the assistant's."""
    if (role := found[-1]["role"]) != ASSISTANT:
        raise BadRecordError(
            f"the last message of {field!r} has role {role!r}, expected {ASSISTANT!r}"
        )


def _compiled(template: ChatTemplate) -> "Template":
    from trainer.data.jinja_template import Template  # imported late: takes 0.1 s

    return Template(template)
