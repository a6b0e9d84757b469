"""Provisions every host before Ray starts: uv, the code, an environment from the lock file.

Everything is stored in one folder on the host, under hashes of its inputs. Items that already exist
are neither sent nor built again. The host needs only a shell.
"""

import hashlib
import io
import platform
import shlex
import tarfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path, PurePosixPath

from launcher.core.errors import HostError
from launcher.core.formatting import pluralize
from launcher.core.ipv4 import NEEDED, is_ipv6
from launcher.providers.ray.code_bundle import Code
from launcher.providers.ssh.connection import Host, SshError
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.uv_binary import Uv

INSPECT_TIMEOUT_S, SEND_TIMEOUT_S, ENVIRONMENT_TIMEOUT_S = 40.0, 600.0, 1200.0
COMPLETE = ".complete"
EXTRAS = {"tpu": "tpu", "gpu": "cuda", "gs:": "gcs"}
"""Accelerator or storage -> the extra with its libraries, used when the project defines it."""

INSPECT = """
base={folder}; umask 077
mkdir -p "$base" || exit 1
cd "$base" && base=$(pwd -P) || exit 1
echo "slipway base $base"
echo "slipway machine $(uname -sm)"
set -- $SSH_CONNECTION
echo "slipway address $3"
for item in {items}; do [ -e "$item" ] && echo "slipway there $item"; done
true
"""
SEND = """
umask 077; cd {base} && mkdir -p "$(dirname {place})" || exit 1
new=$(mktemp -d {place}.XXXXXX) || exit 1
trap 'rm -rf "$new"' EXIT
tar -xzf - -C "$new" && {{ mv -T "$new" {place} 2>/dev/null || [ -d {place} ]; }}
"""
MAKE = """
umask 077; mkdir -p {locks} && cd {code} || exit 1
export UV_PROJECT_ENVIRONMENT={environment} TMPDIR={locks}
export UV_COMPILE_BYTECODE=${{UV_COMPILE_BYTECODE:-1}}
{uv} sync --locked --no-dev --no-install-project --no-progress --quiet \
 --python {python} {extras} && touch {environment}/{complete}
"""


@dataclass(frozen=True)
class Provisioned:
    """Paths, which are the same on all hosts, and each host's own address."""

    base: PurePosixPath
    code: PurePosixPath
    folder: PurePosixPath
    """Folder below `code` that corresponds to the one where the command was run."""
    python: PurePosixPath
    addresses: Sequence[str]
    """Addresses as the hosts themselves see them: private ones behind address translation."""

    def command(self, module: str, *args: str, folder: PurePosixPath | None = None) -> str:
        """Returns a command for a host's shell that runs a module of the code in its environment.

        `folder` is its working directory; None is the folder where the command was run.
        """
        called = shlex.join([str(self.python), "-m", module, *args])
        where, code = _quoted(folder or self.folder), _quoted(self.code)
        return shell(f"cd {where} && PYTHONPATH={code} exec {called}")


@dataclass(frozen=True)
class _Inventory:
    """The items that a host already has, with its base folder, machine and address."""

    base: PurePosixPath
    machine: str
    address: str
    there: frozenset[str]


class _Provisioning:
    """Provisions all hosts with the same items. Methods take the number of a host."""

    def __init__(self, hosts: Sequence[Host], code: Code, uv: Uv, extras: Sequence[str]) -> None:
        self._hosts, self._code, self._uv, self._extras = hosts, code, uv, extras
        self._python = platform.python_version()
        self.uv_place = f"uv/{uv.sha256[:16]}"
        self.code_place = f"code/{code.sha256[:16]}"
        self.environment_place = f"environments/{self._environment_hash()[:16]}"
        self._complete = f"{self.environment_place}/{COMPLETE}"

    def inspect(self, number: int) -> _Inventory:
        host = self._hosts[number]
        items = [self.uv_place, self.code_place, self._complete]
        script = INSPECT.format(folder=_folder(host.settings.remote_dir), items=shlex.join(items))
        values: dict[str, list[str]] = {}
        for line in host.run(shell(script), INSPECT_TIMEOUT_S).splitlines():
            mark, _, rest = line.partition(" ")
            key, _, value = rest.partition(" ")
            if mark == "slipway":
                values.setdefault(key, []).append(value)
        if not {"base", "machine", "address"} <= set(values):
            raise SshError("its login shell gave no answer; it must accept `sh -c '...'`")
        (base,), (machine,), (address,) = values["base"], values["machine"], values["address"]
        if machine != self._uv.machine:
            raise SshError(f"it is {machine}, but this machine's uv is for {self._uv.machine}")
        if is_ipv6(address):
            raise SshError(f"it is reached at {address}. {NEEDED}")
        return _Inventory(PurePosixPath(base), machine, address, frozenset(values.get("there", ())))

    def describe(self, inventories: Sequence[_Inventory]) -> str:
        """Returns a status text with the number of hosts that lack code or environments."""
        code = sum(self.code_place not in inventory.there for inventory in inventories)
        environments = sum(self._complete not in inventory.there for inventory in inventories)
        of = f"of {pluralize(len(inventories), 'host')}"
        return f"code for {code} {of}, environments for {environments} {of}"

    def provide(self, number: int, inventory: _Inventory) -> None:
        """Sends and builds what the host lacks."""
        if self._complete in inventory.there and self.code_place in inventory.there:
            return
        if self.code_place not in inventory.there:
            self._send(number, inventory, self.code_place, self._code.archive)
        if self._complete in inventory.there:
            return
        if self.uv_place not in inventory.there:
            self._send(number, inventory, self.uv_place, _packed(self._uv.path))
        script = MAKE.format(
            code=_quoted(inventory.base / self.code_place),
            environment=_quoted(inventory.base / self.environment_place),
            locks=_quoted(inventory.base / "uv" / "locks"),
            uv=_quoted(inventory.base / self.uv_place / "uv"),
            python=self._python,
            extras=shlex.join([arg for extra in self._extras for arg in ("--extra", extra)]),
            complete=COMPLETE,
        )
        self._hosts[number].run(shell(script), ENVIRONMENT_TIMEOUT_S)

    def _send(self, number: int, inventory: _Inventory, place: str, archive: bytes) -> None:
        """Sends an archive atomically, also when another launch sends the same one."""
        script = SEND.format(base=_quoted(inventory.base), place=shlex.quote(place))
        self._hosts[number].run(shell(script), SEND_TIMEOUT_S, archive)

    def _environment_hash(self) -> str:
        """Returns the hash of everything that determines the environment."""
        files = [(self._code.root / name).read_bytes() for name in ("uv.lock", "pyproject.toml")]
        versions = [self._python, self._uv.machine, *self._extras]
        return hashlib.sha256(b"\0".join([*files, *map(str.encode, versions)])).hexdigest()


def provision(
    hosts: Sequence[Host],
    code: Code,
    uv: Uv,
    platform: str,
    on_status: Callable[[str], None],
    storage: str | None,
) -> Provisioned:
    """Provisions all hosts in parallel. Raises HostError with each host that fails."""
    work = _Provisioning(hosts, code, uv, _extras(code, platform, storage or ""))
    on_status("inspecting the hosts")
    inventories = everywhere(hosts, work.inspect)
    _refuse_unlike(hosts, inventories)
    on_status(work.describe(inventories))
    everywhere(hosts, lambda number: work.provide(number, inventories[number]))
    base = inventories[0].base
    return Provisioned(
        base=base,
        code=base / work.code_place,
        folder=base / work.code_place / PurePosixPath(code.below),
        python=base / work.environment_place / "bin" / "python",
        addresses=[inventory.address for inventory in inventories],
    )


def _refuse_unlike(hosts: Sequence[Host], inventories: Sequence[_Inventory]) -> None:
    """Raises HostError when the hosts' folders differ or an address is unusable or duplicate.

    With equal folders, a path that the head reports is valid on all hosts.
    """
    first, problems = inventories[0], []
    for host, inventory in zip(hosts, inventories, strict=True):
        if inventory.base != first.base:
            problems.append(f"  {host.name}: its folder is {inventory.base}, not {first.base}")
    if problems:
        remedy = "Set provider.remote_dir to a folder that can have the same path on all hosts"
        raise HostError("\n".join(["the hosts' folders differ:", *problems, remedy]))
    seen: dict[str, str] = {}
    for host, inventory in zip(hosts, inventories, strict=True):
        if len(hosts) > 1 and ip_address(inventory.address).is_loopback:
            raise HostError(
                f"{host.name}: its address is {inventory.address}, which other hosts cannot reach. "
                "List it in provider.hosts by another address"
            )
        if other := seen.get(inventory.address):
            raise HostError(f"{other} and {host.name} are the same machine, {inventory.address}")
        seen[inventory.address] = host.name


def _extras(code: Code, platform: str, storage: str) -> list[str]:
    project = tomllib.loads((code.root / "pyproject.toml").read_text(encoding="utf-8"))
    known = project.get("project", {}).get("optional-dependencies", {})
    needed = (platform, storage.partition("//")[0])
    return [extra for kind, extra in EXTRAS.items() if kind in needed and extra in known]


def _folder(given: str) -> str:
    """Quotes a folder for a host's shell, which expands only a leading ~."""
    if given == "~" or given.startswith("~/"):
        return '"$HOME"' + shlex.quote(given[1:]) if given[1:] else '"$HOME"'
    return shlex.quote(given)


def _packed(program: Path) -> bytes:
    """Returns an archive of `uv` alone for `_send`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        entry = tarfile.TarInfo("uv")
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as content:
            archive.addfile(entry, content)
    return packed.getvalue()


def _quoted(path: PurePosixPath) -> str:
    return shlex.quote(str(path))


def shell(script: str) -> str:
    """Returns a command that runs a script with `sh`, for any login shell of the user."""
    return f"exec sh -c {shlex.quote(script)}"
