"""Finds where a program is from its stacks: faulthandler's (SIGUSR1) or `py-spy dump`'s."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
# Thread 0x00007f0c7dffb6c0 (most recent call first):
#   File "/home/me/train.py", line 31 in next
HEADER = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
# Thread 4711 (idle): "MainThread"
#     next (train.py:31)
SPY_HEADER = re.compile(r'Thread \S+ \([a-z+]+\)(: "(?P<name>.*)")?$')
SPY_FRAME = re.compile(r"    (?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$")
OUTERMOST = {"<module>", "_run_module_as_main"}
"""Outermost functions of a main thread; other threads begin in threading.py."""
LIBRARIES = re.compile(r"<frozen |.*/(?:(?:site|dist)-packages|lib/python3[.\d]*t?)/")


@dataclass(frozen=True)
class StackFrame:
    """A call in the stack of a thread."""

    file: str
    line: int
    function: str

    @property
    def of_interest(self) -> bool:
        """Whether it belongs to the program or to Slipway, not to a library."""
        return not LIBRARIES.match(self.file) or self._short.startswith("trainer/")

    @property
    def _short(self) -> str:
        """The file relative to its import folder or to the working directory."""
        short = LIBRARIES.sub("", self.file)
        for folder in (ROOT, str(Path.cwd())):
            short = short.removeprefix(f"{folder}/")
        return short

    def __str__(self) -> str:
        return f"{self._short}:{self.line} in {self.function}"


@dataclass
class _Thread:
    frames: list[StackFrame] = field(default_factory=list)
    """Frames, innermost first."""
    name: str = ""

    @property
    def is_main(self) -> bool:
        outermost = self.frames[-1].function if self.frames else ""
        return self.name == "MainThread" if self.name else outermost in OUTERMOST


def innermost(text: str, count: int = 3) -> list[str]:
    """Returns where a program's main thread is, like "trainer/data/loader.py:31 in training".

    Returns at most `count` frames, innermost first, and library frames only if there are no others.
    If `text` has stacks of several processes, uses those of the first. Empty without stacks.
    """
    frames = main_frames(text)
    return [str(f) for f in [frame for frame in frames if frame.of_interest] or frames][:count]


def main_frames(text: str) -> list[StackFrame]:
    """Returns all frames of a program's main thread, innermost first; see `innermost`."""
    threads = _threads(text.splitlines())
    mains = [thread for thread in threads if thread.is_main] or threads[-1:]
    return mains[0].frames if mains else []


def _threads(lines: Sequence[str]) -> list[_Thread]:
    """Returns the threads in a program's output; skips other lines in between."""
    threads: list[_Thread] = []
    for line in lines:
        if header := SPY_HEADER.match(line):
            threads.append(_Thread(name=header["name"] or "?"))
        elif HEADER.match(line):
            threads.append(_Thread())
        elif threads and (frame := FRAME.match(line) or SPY_FRAME.match(line)):
            threads[-1].frames.append(
                StackFrame(frame["file"], int(frame["line"]), frame["function"])
            )
    return threads
