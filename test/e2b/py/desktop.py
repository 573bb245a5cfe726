"""The cases of the desktop SDK, which is synchronous."""

import asyncio
import importlib.metadata
import os
import struct
import urllib.request

import e2b_desktop as sdk

import harness
import methods
from harness import raises, test, until


class Desktop:
    """A desktop for one case."""

    def __init__(self, **opts):
        self.opts = {"timeout": 120, **opts}

    async def __aenter__(self):
        self.sbx = await asyncio.to_thread(sdk.Sandbox.create, **self.opts)
        return self.sbx

    async def __aexit__(self, *_):
        await asyncio.to_thread(self.sbx.kill)


def dimensions(png):
    png = bytes(png)
    assert png[1:4] == b"PNG"
    return struct.unpack(">II", png[16:24])


def windows(sbx, name):
    try:
        return sbx.get_application_windows(name)
    except sdk.CommandExitException:
        return None


async def terminal(sbx, command):
    """Opens a terminal that runs a command, and gives it the focus."""
    sbx.commands.run(f"xterm -geometry 60x12+100+100 -e sh -c '{command}'", background=True, timeout=0)
    window = (await until(lambda: windows(sbx, "xterm"), "a terminal"))[0]
    sbx.left_click(300, 200)
    await until(lambda: sbx.get_current_window_id() == window, "the terminal has the focus")
    return window


@test("desktop: sizes, screenshots and the mouse")
async def _():
    async with Desktop(resolution=(800, 600), dpi=72) as sbx:
        assert sbx.get_screen_size() == (800, 600)
        assert dimensions(sbx.screenshot()) == (800, 600)
        assert dimensions(b"".join(sbx.screenshot("stream"))) == (800, 600)
        sbx.move_mouse(120, 140)
        assert sbx.get_cursor_position() == (120, 140)
        for act in (sbx.left_click, sbx.double_click, sbx.right_click, sbx.middle_click):
            act(400, 350)
            assert sbx.get_cursor_position() == (400, 350)
        sbx.scroll("up", 2)
        sbx.scroll()
        sbx.mouse_press()
        sbx.mouse_release()
        sbx.drag((350, 300), (420, 380))
        assert sbx.get_cursor_position() == (420, 380)
        sbx.wait(10)


@test("desktop: keyboard and windows")
async def _():
    async with Desktop() as sbx:
        window = await terminal(sbx, "cat >/tmp/typed")
        assert sbx.get_window_title(window)
        line = "It's \"typed\" & longer than 25 characters: $HOME; ~"
        sbx.write(line)
        sbx.press("enter")
        sbx.press(["ctrl", "d"])
        await until(lambda: sbx.files.exists("/tmp/typed") and sbx.files.read("/tmp/typed") == line + "\n", "what was typed")


@test("desktop: launch and open")
async def _():
    async with Desktop() as sbx:
        sbx.launch("org.xfce.mousepad")
        await until(lambda: windows(sbx, "mousepad"), "an editor")
        sbx.files.write("/tmp/page.html", "<title>a page</title>")
        sbx.open("/tmp/page.html")
        await until(lambda: windows(sbx, "chromium"), "a browser")


@test("desktop: streams")
async def _():
    async with Desktop() as sbx:
        base = os.environ.get("E2B_SANDBOX_URL") or f"https://{sbx.get_host(6080)}"
        sbx.stream.start()
        assert "/vnc.html?autoconnect=true&view_only=true" in sbx.stream.get_url(view_only=True)
        request = urllib.request.Request(base + "/vnc.html", headers={"E2b-Sandbox-Id": sbx.sandbox_id, "E2b-Sandbox-Port": "6080"})
        with urllib.request.urlopen(request) as page:
            assert b"noVNC" in page.read()
        for fails in (sbx.stream.start, sbx.stream.get_auth_key):
            await raises(asyncio.to_thread(fails), "any")
        sbx.stream.stop()
        sbx.stream.start(require_auth=True)
        key = sbx.stream.get_auth_key()
        assert len(key) == 16 and f"password={key}" in sbx.stream.get_url(auth_key=key)
        assert "-usepw" in sbx.commands.run("ps -eo args | grep x11vnc").stdout
        sbx.stream.stop()


harness.VERSION = importlib.metadata.version("e2b-desktop")
asyncio.run(harness.main(lambda: methods.own(sdk.Sandbox)))
