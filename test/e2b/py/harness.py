"""Runs the cases that the other files register, with the synchronous SDK or the
asynchronous one, and reports each as a line of JSON.

The cases are written once, for the asynchronous SDK. Here its synchronous twin
is made to look like it: each call runs in a thread."""

import asyncio
import importlib.metadata
import json
import os
import re
import time
import traceback

import e2b

import methods
import resolve  # noqa: F401  before anything is looked up

methods.watch()

VERSION = importlib.metadata.version("e2b")
SYNC = os.environ["E2B_TEST_MODE"] == "sync"

cases = []


def since(v):
    """Reports whether this SDK has at least a version."""
    return [int(n) for n in VERSION.split(".")] >= [int(n) for n in v.split(".")]


def test(name, start="2.0.0"):
    def register(fn):
        if since(start):
            cases.append((name, fn))
        return fn

    return register


class Waited:
    """An object or class of the synchronous SDK whose calls can be awaited."""

    own = re.compile(r"(Sandbox|Commands|Filesystem|Pty|CommandHandle|WatchHandle|Git|\w*Paginator|Volume|Secret|Template)$")
    plain = {"get_host", "download_url", "upload_url", "list"}

    def __init__(self, it):
        self.it = it

    def __getattr__(self, name):
        v = getattr(self.it, name)
        if not callable(v):
            return wrap(v)
        if name == "list" and getattr(self.it, "__name__", "") == "Secret":
            return lambda *a, **k: wrap(v(*a, **k))
        if name in self.plain and "Sandbox" in (getattr(self.it, "__name__", "") + type(self.it).__name__):
            return lambda *a, **k: wrap(v(*a, **k))

        async def call(*a, **k):
            return wrap(await asyncio.to_thread(v, *a, **k))

        return call


def wrap(v):
    if isinstance(v, list):
        return [wrap(one) for one in v]
    return Waited(v) if Waited.own.search(type(v).__name__) else v


Sandbox = Waited(e2b.Sandbox) if SYNC else e2b.AsyncSandbox


def kind(name):
    """A class of the tested SDK."""
    return Waited(getattr(e2b, name)) if SYNC else getattr(e2b, "Async" + name)


class Box:
    """A sandbox for one case."""

    def __init__(self, **opts):
        self.opts = {"timeout": 120, **opts}

    async def __aenter__(self):
        self.sbx = await Sandbox.create(**self.opts)
        return self.sbx

    async def __aexit__(self, *_):
        await self.sbx.kill()


async def until(fn, what):
    for _ in range(600):
        v = fn()
        if asyncio.iscoroutine(v):
            v = await v
        if v:
            return v
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {what}")


async def raises(awaitable, *names):
    """Expects one of the SDK's exceptions; exceptions that an older SDK lacks are ignored."""
    if "any" in names:
        classes = (Exception,)
    else:
        classes = kinds(names)
    try:
        await awaitable
    except classes as e:
        return e
    raise AssertionError(f"did not fail with {names}")


def kinds(names):
    return tuple(getattr(e2b, n) for n in names if hasattr(e2b, n)) or tuple(getattr(e2b.exceptions, n) for n in names)


async def main(report=lambda: methods.report(SYNC)):
    only = re.compile(os.environ.get("E2B_TEST_RUN", "."))
    for name, fn in cases:
        if not only.search(name):
            continue
        begun = time.monotonic()
        said = {"name": name, "ok": True}
        try:
            await asyncio.wait_for(fn(), 120)
        except BaseException:
            said |= {"ok": False, "error": traceback.format_exc()[-6000:]}
        said["ms"] = round((time.monotonic() - begun) * 1000)
        print(json.dumps(said), flush=True)
    print(json.dumps({"done": True, "version": VERSION, "methods": {} if "E2B_TEST_RUN" in os.environ else report()}), flush=True)
    os._exit(0)
