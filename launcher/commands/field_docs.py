"""The strings that document the fields of a class."""

import ast
import inspect
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """Returns the string that follows each field of a class, by the name of the field.

    Fields of base classes are included.
    """
    found = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.partition(".")[0] in ("launcher", "trainer"):
            found |= _own_docs(owner)
    return found


def _own_docs(owner: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=value)):
                found[name] = " ".join(str(value).split())
    return found
