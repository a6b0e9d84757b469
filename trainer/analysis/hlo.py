"""A compiled program, parsed from the text of its HLO: computations, and how often each one runs.

The parser understands only text in the form of XLA's own printer: one instruction a line,
`%name = shape opcode(operands), attributes`.
"""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

HEADER = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (.*)$")
NAME = re.compile(r"%([\w.-]+)")
ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
BITS = re.compile(r"\d+")
CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation)"
    r"=(\{[^}]*\}|%[\w.-]+)"
)
SPLIT = re.compile(r'\{\n("[^\n]*)\n\}')
"""Attributes that are printed over three lines: those of a kernel."""
OP_NAME = re.compile(r'op_name="([^"]*)"')
COPIES = ("copy", "bitcast", "convert", "copy-start", "copy-done")
OVERFLOW = re.compile(r"\boverflow/while")
"""Scope of a loop over passes of which even loads of experts need none: see moe_exchange.py."""
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    """Shape as printed, with its layout; that of a tuple is in parentheses."""
    opcode: str
    arguments: str
    """Text in the parentheses."""
    attributes: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        return NAME.findall(self.arguments)

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs."""
        return [
            name for _, words in CALLED.findall(self.attributes) for name in NAME.findall(words)
        ]

    @property
    def op_name(self) -> str:
        """Path of scopes in the traced program; empty when it is unknown."""
        found = OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def bytes(self) -> int:
        return bytes_of(self.shape)


Computation = dict[str, Instruction]


class Program:
    """The computations of a program's text, by name."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self._used_by: dict[str, dict[str, list[str]]] = {}
        current: Computation = {}
        for line in SPLIT.sub(r"{\1}", text).splitlines():
            if header := HEADER.match(line):
                current = self.computations.setdefault(header[2], {})
                self.entry = header[2] if header[1] else self.entry
            elif found := INSTRUCTION.match(line):
                current[found[2]] = _instruction(found[2], found[3], is_root=bool(found[1]))

    @cached_property
    def runs(self) -> Counter[str]:
        """Number of times that each computation runs when the program runs once.

        Every branch of a conditional counts. Raises ValueError when a loop is not a counting loop.
        """
        runs: Counter[str] = Counter()
        self._count(self.entry, 1, runs)
        return runs

    def caller(self, name: str) -> Instruction | None:
        """Returns the first instruction that runs a computation. Returns None for the entry."""
        return self._callers.get(name)

    @cached_property
    def _callers(self) -> dict[str, Instruction]:
        everywhere = [one for c in self.computations.values() for one in c.values()]
        return {name: one for one in reversed(everywhere) for name in one.called}

    def neighbours(self, computation: str, name: str) -> list[str]:
        """Returns the names of an instruction's operands and users in its computation."""
        return [*self.computations[computation][name].operands, *self._users(computation)[name]]

    def place(self, instruction: Instruction) -> str:
        """Returns the name of the computation that contains an instruction."""
        return self._places[instruction.name]

    def _users(self, computation: str) -> dict[str, list[str]]:
        if computation not in self._used_by:
            users = self._used_by[computation] = defaultdict(list)
            for one in self.computations[computation].values():
                for operand in one.operands:
                    users[operand].append(one.name)
        return self._used_by[computation]

    @cached_property
    def _places(self) -> dict[str, str]:
        return {name: place for place, c in self.computations.items() for name in c}

    def _count(self, name: str, times: int, runs: Counter[str]) -> None:
        runs[name] += times
        for instruction in self.computations[name].values():
            if instruction.called:
                trips = 1
                if instruction.opcode == "while":
                    trips = self.trips(instruction, self.computations[name])
                for called in instruction.called:
                    self._count(called, times * trips, runs)

    def body(self, loop: Instruction) -> str:
        """Returns the name of a loop's body."""
        return dict(CALLED.findall(loop.attributes))["body"][1:]

    def trips(self, loop: Instruction, around: Computation) -> int:
        """Returns the trip count of a `while` that counts up by a constant between two constants.

        A loop that only uneven loads of experts need has none. Raises ValueError for any other
        loop.
        """
        if OVERFLOW.search(loop.op_name):
            return 0
        if known := TRIPS.search(loop.attributes):
            return int(known[1])
        words = dict(CALLED.findall(loop.attributes))
        condition, body = (self.computations[words[key][1:]] for key in ("condition", "body"))
        test, start = _root(condition), _source(around, loop.operands[0])
        if test.opcode != "compare" or "direction=LT" not in test.attributes:
            raise ValueError(f"the loop {loop.name} is not one that counts up")
        counter, limit = (_source(condition, name) for name in test.operands)
        index = _tuple_index(counter)
        first = _constant(_source(around, start.operands[index]))
        if limit.opcode == "get-tuple-element":
            limit = _source(around, start.operands[_tuple_index(limit)])
        return max(0, -(-(_constant(limit) - first) // _increment(body, index)))


def bytes_of(shape: str) -> int:
    """Returns the bytes of all arrays in a printed shape, without padding."""
    return sum(_array_bytes(dtype, dims) for dtype, dims in ARRAY.findall(shape))


def _array_bytes(dtype: str, dims: str) -> int:
    bits = BITS.search(dtype)
    elements = math.prod(int(dim) for dim in dims.split(",") if dim)
    return elements * max(1, int(bits[0]) // 8 if bits else 1)


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    shape, rest = _split_shape(text)
    opcode, _, rest = rest.partition("(")
    end = _closing(rest)
    return Instruction(name, shape, opcode, rest[:end], rest[end + 1 :], is_root)


def _split_shape(text: str) -> tuple[str, str]:
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    end = _closing(text[1:]) + 2
    return text[:end], text[end + 1 :]


def _closing(text: str) -> int:
    """Returns the index at which the parenthesis that is open at the start of `text` closes."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return place
    raise ValueError(f"no end of the parenthesis in {text[:80]}")


def _root(computation: Computation) -> Instruction:
    return next(one for one in computation.values() if one.is_root)


def _source(computation: Computation, name: str) -> Instruction:
    """Returns the instruction that computed a value, before any copies and conversions."""
    found = computation[name]
    return _source(computation, found.operands[0]) if found.opcode in COPIES else found


def _constant(found: Instruction) -> int:
    if found.opcode != "constant":
        raise ValueError(f"{found.name} is not a constant but a {found.opcode}")
    return int(found.arguments)


def _tuple_index(element: Instruction) -> int:
    index = re.search(r"\bindex=(\d+)", element.attributes)
    if index is None:
        raise ValueError(f"{element.name} is not the element of a tuple")
    return int(index[1])


def _increment(body: Computation, index: int) -> int:
    """Returns the constant that a loop's body adds to an element of its tuple."""
    new = _source(body, _root(body).operands[index])
    terms = [_source(body, name) for name in new.operands]
    added = [term for term in terms if term.opcode == "constant"]
    if new.opcode != "add" or len(added) != 1:
        raise ValueError(f"{new.name} does not count by a constant")
    return _constant(added[0])
