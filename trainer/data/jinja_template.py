"""Chat templates, rendered in Jinja's sandbox with Hugging Face's settings and names.

Only `strftime_now` is missing: a record must render as the same text on every day.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer.contract.storage.chat_template import ChatTemplate
from trainer.contract.storage.corpus import DataError
from trainer.data.readers import BadRecordError


class Template:
    """A compiled chat template. Raises DataError when it is not valid Jinja."""

    def __init__(self, template: ChatTemplate) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _reject
        self._names: Mapping[str, Any] = {"tools": None, "documents": None, **template.tokens}
        try:
            self._template = environment.from_string(template.text)
        except TemplateSyntaxError as error:
            raise DataError(
                f"data.tokenizer: invalid chat template, line {error.lineno}: {error.message}"
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]], asks: bool = False) -> str:
        """Renders messages; `asks` adds the generation prompt, which precedes an answer.

        Raises BadRecordError when the template rejects the messages.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=asks, **self._names
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise BadRecordError(f"the chat template rejects the record: {error}") from None


class _Generation(Extension):
    """Parses `{% generation %}`, which marks an assistant's text, and renders only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _json(value: Any, **settings: Any) -> str:
    """Returns JSON without HTML escapes, which Jinja's own filter would add."""
    return json.dumps(value, ensure_ascii=False, **settings)


def _reject(message: str) -> NoReturn:
    raise TemplateError(message)
