"""Chat templates, rendered in Jinja's sandbox with the settings and names of Hugging Face.

No `strftime_now`: the same record is the same text on every day.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer.data.records import BadRecordError
from trainer.spec.chat import ChatTemplate
from trainer.spec.corpus import DataError


class Template:
    """Raises DataError where it is none of Jinja."""

    def __init__(self, template: ChatTemplate) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _json
        environment.globals["raise_exception"] = _refuse
        self._names: Mapping[str, Any] = {"tools": None, "documents": None, **template.tokens}
        try:
            self._template = environment.from_string(template.text)
        except TemplateSyntaxError as error:
            raise DataError(
                f"data.tokenizer: its chat template, line {error.lineno}: {error.message}"
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]], asks: bool = False) -> str:
        """`asks`: with what stands before an answer that is still to come.

        Raises BadRecordError where the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=asks, **self._names
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise BadRecordError(f"the chat template refuses it: {error}") from None


class _Generation(Extension):
    """`{% generation %}` marks what an assistant writes; here it is the text alone."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _json(value: Any, **settings: Any) -> str:
    """Jinja's own would write signs of HTML as escapes."""
    return json.dumps(value, ensure_ascii=False, **settings)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
