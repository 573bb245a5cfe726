"""Where the daemon is."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from atoll.errors import InvalidError, UnavailableError, UnsupportedError

LOCAL = "atoll"
"""Stands for a daemon that is reached without a network."""


@dataclass(frozen=True)
class Address:
    """The address of a daemon, and the API key for it."""

    base: str
    socket: str = ""
    key: str = field(default="", repr=False)
    named: bool = False
    """The address was given; otherwise it is the socket of this user's daemon."""
    tenant: str = ""
    """The tenant to act in, which the owner of the machine may choose."""

    @classmethod
    def find(cls, host: str | None = None, key: str | None = None, tenant: str | None = None) -> Address:
        """The daemon that host names, else $ATOLL_HOST, else the one of the state directory."""
        if not host:
            host = os.environ.get("ATOLL_HOST", "")
            key = key or os.environ.get("ATOLL_KEY", "")
        if not host:
            return cls(f"http://{LOCAL}", str(state_directory() / "atoll.sock"), key or "", False, tenant or "")
        path = host.removeprefix("unix://")
        if path != host and path.startswith("/"):
            return cls(f"http://{LOCAL}", path, key or "", True, tenant or "")
        u = urlsplit(host)
        plain = not (u.username or u.password or u.query or u.fragment)
        if plain and u.scheme in ("http", "https") and u.netloc and not u.path.strip("/"):
            return cls(f"{u.scheme}://{u.netloc}", "", key or "", True, tenant or "")
        raise InvalidError(
            "is not the address of a daemon", op="client.new", subject="host", hint="write unix:///path/of/atoll.sock or https://host:port"
        )

    def headers(self) -> dict[str, str]:
        out = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if self.tenant:
            out["Atoll-Tenant"] = self.tenant
        for name in ("traceparent", "tracestate"):
            if os.environ.get("TRACEPARENT") and (value := os.environ.get(name.upper(), "")) and value.isprintable() and len(value) <= 512:
                out[name] = value
        return out

    def port_url(self, port: int, sandbox: str) -> str:
        """The URL of an HTTP server on a port of a sandbox."""
        u = urlsplit(self.base)
        host, label = u.hostname or "", f"{port}-{sandbox}"
        with contextlib.suppress(ValueError):  # it is a name
            host = "localhost" if ipaddress.ip_address(host).is_loopback else ""
        if self.socket or not host or not 0 < port < 1 << 16 or len(label) > 63:
            raise UnsupportedError(
                "there is no host name for this port", op="port.url", subject=str(port),
                hint="reach the daemon over TCP by a name that it was given with --host, or use dial",
            )  # fmt: skip
        return f"{u.scheme}://{label}.{host}" + (f":{u.port}" if u.port else "")


def state_directory() -> Path:
    """The state directory of this user's daemon."""
    if state := os.environ.get("ATOLL_STATE_DIR"):
        return Path(state).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/atoll")
    for base in (os.environ.get("XDG_STATE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".local", "state")):
        if os.path.isabs(base):
            return Path(base, "atoll")
    raise UnavailableError("there is no home directory to look for a daemon in", op="client.new", hint="set ATOLL_HOST")


def start_daemon() -> None:
    """Start a daemon in the background, as the command line does, unless one runs."""
    no = os.environ.get("ATOLL_NO_DAEMON", "")
    if no and no.lower() not in ("0", "f", "false"):
        raise UnavailableError("no daemon runs", op="daemon.start", hint="start one with: atoll up")
    program = os.environ.get("ATOLL_BIN") or "atoll"
    try:
        done = subprocess.run([program, "up", "--detach"], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=90)
    except FileNotFoundError as e:
        raise UnavailableError(
            "no daemon runs, and there is no program atoll", op="daemon.start", hint="install it, or set ATOLL_HOST"
        ) from e
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UnavailableError(f"the daemon could not be started: {e}", op="daemon.start", hint="start one with: atoll up") from e
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        said = {
            k: next((line.removeprefix(f"atoll: {k}: ") for line in lines if line.startswith(f"atoll: {k}: ")), "")
            for k in ("error", "hint")
        }
        raise UnavailableError(
            said["error"] or "the daemon could not be started", op="daemon.start", hint=said["hint"] or "start one with: atoll up"
        )
