"""The Markdown pages of the documentation, and the blocks of code in them."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
WITH_README = [ROOT / "README.md", *PAGES]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)

WITH_JOBS = ("jobs/quickstart.yaml", "launcher/commands/init.py")
SMALL_JOB = {"d_model": 64, "d_ff": 128, "seq_len": 64, "batches": 1, "tokens": 20}


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    """Returns the code of all blocks of a language, in order."""
    found = _BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [block[3] for block in found if block[2] == language]


def prose(path: Path) -> str:
    """Returns a page without its blocks of code."""
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def copy_checkout(folder: Path) -> Path:
    """Copies the files of the working tree that git does not ignore, and returns `folder`."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def shrink_jobs(checkout: Path) -> None:
    """Gives jobs of a copy smaller models, shorter sequences and fewer tokens.

    They are the quickstart, and what `launch init` writes.
    """
    for file in WITH_JOBS:
        text = (checkout / file).read_text(encoding="utf-8")
        for key, value in SMALL_JOB.items():
            text, found = re.subn(rf"\b{key}: \d+", f"{key}: {value}", text)
            assert found, f"{file} has a {key}"
        (checkout / file).write_text(text, encoding="utf-8")
