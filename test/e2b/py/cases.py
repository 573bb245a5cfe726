"""The cases. Each creates and removes its own resources."""

import asyncio
import datetime
import hashlib
import re
import urllib.error
import urllib.request
import uuid

import e2b

from harness import SYNC, Box, Sandbox, kind, raises, since, test, until

MISSING = ("SandboxNotFoundException", "NotFoundException")
# Old versions pass on their HTTP library's error for an interrupted stream.
DEAD = ("TimeoutException", "SandboxException") if since("2.45.0") else ("any",)


@test("create, look, kill")
async def _():
    sbx = await Sandbox.create(timeout=60, metadata={"a key": "b c&d=é", "other": "1"})
    assert re.fullmatch("[a-z0-9]+", sbx.sandbox_id), sbx.sandbox_id
    info = await sbx.get_info()
    assert info.metadata == {"a key": "b c&d=é", "other": "1"}, info.metadata
    assert (info.template_id, str(info.state.value)) == ("base", "running")
    assert 59 < (info.end_at - info.started_at).total_seconds() < 62
    assert await sbx.is_running()
    assert await sbx.kill() is True
    assert await sbx.is_running() is False
    assert await sbx.kill() is False
    assert await Sandbox.kill(sbx.sandbox_id) is False
    await raises(sbx.get_info(), *MISSING)
    await raises(Sandbox.connect(sbx.sandbox_id), *MISSING)
    await raises(sbx.set_timeout(10), *MISSING)


@test("wrong keys and templates")
async def _():
    key = "e2b_" + "0" * 138
    await raises(Sandbox.create(api_key=key), "AuthenticationException")
    await raises(Sandbox.create(template="no-such-template"), "NotFoundException", "SandboxException")


@test("connect extends and never shortens")
async def _():
    async with Box() as sbx:
        before = (await sbx.get_info()).end_at
        again = await Sandbox.connect(sbx.sandbox_id, timeout=10)
        assert (await sbx.get_info()).end_at == before
        await Sandbox.connect(sbx.sandbox_id, timeout=300)
        assert (await sbx.get_info()).end_at - before > datetime.timedelta(seconds=100)
        await sbx.files.write("x", "from the first")
        assert await again.files.read("x") == "from the first"


@test("the timeout ends it")
async def _():
    sbx = await Sandbox.create(timeout=60)
    stuck = asyncio.ensure_future(raises(sbx.commands.run("sleep 1000"), *DEAD))
    await asyncio.sleep(0)
    await sbx.set_timeout(2)
    await stuck

    async def gone():
        return not await sbx.is_running()

    await until(gone, "it is gone")


@test("list: filters and pages")
async def _():
    tag = str(uuid.uuid4())
    made = [await Sandbox.create(timeout=60, metadata={"tag": tag, "n": n}) for n in "123"]
    try:
        p = Sandbox.list(query=e2b.SandboxQuery(metadata={"tag": tag}), limit=2)
        assert p.has_next
        ids = [s.sandbox_id for s in await p.next_items()]
        assert ids == [made[2].sandbox_id, made[1].sandbox_id], ids
        assert [s.sandbox_id for s in await p.next_items()] == [made[0].sandbox_id]
        assert not p.has_next
        q = e2b.SandboxQuery(metadata={"tag": tag, "n": "2"}, state=[e2b.SandboxState.RUNNING])
        assert [s.sandbox_id for s in await Sandbox.list(query=q).next_items()] == [made[1].sandbox_id]
        q = e2b.SandboxQuery(metadata={"tag": tag}, state=[e2b.SandboxState.PAUSED])
        assert await Sandbox.list(query=q).next_items() == []
    finally:
        for sbx in made:
            await sbx.kill()


@test("environment of the sandbox")
async def _():
    async with Box(envs={"FOO": "bar"}) as sbx:
        assert (await sbx.commands.run("echo $FOO $E2B_SANDBOX $E2B_SANDBOX_ID")).stdout == f"bar true {sbx.sandbox_id}\n"
        assert (await sbx.commands.run("echo $FOO", envs={"FOO": "other"})).stdout == "other\n"
        assert (await sbx.commands.run("x=äöü; echo ${#x} $(printenv SHELL)")).stdout == "3 /bin/bash\n"
        assert sbx.get_host(3000).startswith(f"3000-{sbx.sandbox_id}.")


@test("killing it aborts what runs")
async def _():
    sbx = await Sandbox.create(timeout=60)
    stuck = asyncio.ensure_future(raises(sbx.commands.run("sleep 1000", timeout=0), *DEAD))

    async def runs():
        return len(await sbx.commands.list()) > 0

    await until(runs, "the command runs")
    await sbx.kill()
    e = await stuck
    assert not isinstance(e, e2b.CommandExitException), e
    await raises(sbx.commands.run("true"), *DEAD)


@test("killing it ends what waits with its timeout error", "2.45.0")
async def _():
    for _ in range(5):
        sbx = await Sandbox.create(timeout=60)
        h = await sbx.commands.run("sleep 60", background=True)
        stuck = asyncio.ensure_future(raises(h.wait(), "TimeoutException"))
        await sbx.kill()
        await stuck


@test("files without a size")
async def _():
    async with Box() as sbx:
        for path in ("/proc/cpuinfo", "/proc/sys/kernel/hostname", "/sys/devices/system/cpu/online"):
            want = (await sbx.commands.run(f"cat {path}")).stdout
            assert want
            assert await sbx.files.read(path) == want
            assert bytes(await sbx.files.read(path, format="bytes")).decode() == want


@test("run: no command leads its process group")
async def _():
    async with Box() as sbx:
        e = await raises(sbx.commands.run('setsid sh -c "exit 3"'), "CommandExitException")
        assert e.exit_code == 3, e
        h = await sbx.commands.run("exec setsid sleep 600", background=True)
        assert await h.kill() is True


@test("run: output, streams, exit codes")
async def _():
    async with Box() as sbx:
        seen = []
        r = await sbx.commands.run("echo out; echo err >&2", on_stdout=seen.append, on_stderr=seen.append)
        assert (r.stdout, r.stderr, r.exit_code) == ("out\n", "err\n", 0)
        assert sorted(seen) == ["err\n", "out\n"], seen
        e = await raises(sbx.commands.run("echo said; exit 7"), "CommandExitException")
        assert (e.exit_code, e.stdout) == (7, "said\n")


@test("run: directory, user, environment")
async def _():
    async with Box() as sbx:
        assert (await sbx.commands.run("pwd; id -un")).stdout == "/home/user\nuser\n"
        assert (await sbx.commands.run("pwd", cwd="/tmp")).stdout == "/tmp\n"
        assert (await sbx.commands.run("id -un; echo $HOME", user="root")).stdout == "root\n/root\n"
        await raises(sbx.commands.run("true", cwd="/no/such/place"), "InvalidArgumentException", "SandboxException")
        await raises(sbx.commands.run("true", user="nobody-here"), "AuthenticationException", "SandboxException")
        await raises(sbx.commands.run("sleep 600", timeout=1), "TimeoutException")


@test("background: wait, list, kill, connect, disconnect")
async def _():
    async with Box() as sbx:
        h = await sbx.commands.run("sleep 600", background=True)
        listed = [p for p in await sbx.commands.list() if p.pid == h.pid]
        assert (listed[0].cmd, listed[0].args) == ("/bin/bash", ["-l", "-c", "sleep 600"])
        assert await h.kill() is True
        await raises(h.wait(), "CommandExitException")
        assert await sbx.commands.kill(h.pid) is False
        loop = await sbx.commands.run("while [ ! -e stop ]; do echo tick; sleep 0.05; done; exit 3", background=True)
        await loop.disconnect()
        again = await sbx.commands.connect(loop.pid)
        await sbx.files.write("stop", "")
        e = await raises(again.wait(), "CommandExitException")
        assert e.exit_code == 3
        await raises(sbx.commands.connect(999999), "NotFoundException", "SandboxException")


@test("input")
async def _():
    async with Box() as sbx:
        h = await sbx.commands.run("head -n 2", background=True, **({"stdin": True} if since("2.3.0") else {}))
        await sbx.commands.send_stdin(h.pid, "one\n")
        await sbx.commands.send_stdin(h.pid, "zwei é\n")
        assert (await h.wait()).stdout == "one\nzwei é\n"


@test("input ends", "2.45.0")
async def _():
    async with Box() as sbx:
        h = await sbx.commands.run("cat; echo end", background=True, stdin=True)
        await sbx.commands.send_stdin(h.pid, "text ")
        await sbx.commands.close_stdin(h.pid)
        assert (await h.wait()).stdout == "text end\n"


@test("input as a stream", "2.60.0")
async def _():
    async with Box() as sbx:
        h = await sbx.commands.run("head -n 3", background=True, stdin=True)
        if SYNC:
            await sbx.commands.stream_input(h.pid, ["a\n", b"b\n", "c\n"])
        else:
            to = sbx.commands.stream_input(h.pid)
            for piece in ["a\n", b"b\n", "c\n"]:
                await to.send(piece)
            await to.close()
        assert (await h.wait()).stdout == "a\nb\nc\n"


@test("much output arrives whole")
async def _():
    async with Box() as sbx:
        r = await sbx.commands.run("head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end", timeout=100)
        assert len(r.stdout) == 10_000_005 and r.stdout.endswith("x\nend\n")


@test("many at once")
async def _():
    async with Box() as sbx:
        all = await asyncio.gather(*(sbx.commands.run(f"echo {i}") for i in range(20)))
        assert [r.stdout for r in all] == [f"{i}\n" for i in range(20)]


@test("files: write and read in all forms")
async def _():
    async with Box() as sbx:
        w = await sbx.files.write("dir/deep/a.txt", "hellö")
        assert (w.path, w.name) == ("/home/user/dir/deep/a.txt", "a.txt")
        assert await sbx.files.read("dir/deep/a.txt") == "hellö"
        assert bytes(await sbx.files.read("dir/deep/a.txt", format="bytes")) == "hellö".encode()
        got = await sbx.files.read("dir/deep/a.txt", format="stream")
        text = b"".join(got) if SYNC else b"".join([c async for c in got])
        assert text == "hellö".encode()
        raw = bytes([0, 255, 10, 13, 0])
        await sbx.files.write("raw", raw)
        assert bytes(await sbx.files.read("raw", format="bytes")) == raw
        await sbx.files.write("empty", "")
        assert await sbx.files.read("empty") == ""
        many = await sbx.files.write_files([{"path": "m/1", "data": "one"}, {"path": "/tmp/m2", "data": b"two"}])
        assert [f.path for f in many] == ["/home/user/m/1", "/tmp/m2"]
        assert await sbx.files.read("/tmp/m2") == "two"


@test("files: compressed", "2.20.0")
async def _():
    async with Box() as sbx:
        await sbx.files.write("z", "z" * 100_000, gzip=True)
        assert await sbx.files.read("z", gzip=True) == "z" * 100_000


@test("files: what is wrong")
async def _():
    async with Box() as sbx:
        await raises(sbx.files.read("missing"), "NotFoundException")
        await raises(sbx.files.list("missing"), "NotFoundException")
        await raises(sbx.files.list("/etc/passwd"), "InvalidArgumentException")
        await raises(sbx.files.read("/tmp"), "InvalidArgumentException", "SandboxException")
        await raises(sbx.files.write("/tmp", "x"), "InvalidArgumentException", "SandboxException")
        await raises(sbx.files.rename("missing", "other"), "NotFoundException")
        await sbx.files.remove("missing")


@test("files: list, exists, info, move, remove")
async def _():
    async with Box() as sbx:
        assert await sbx.files.make_dir("top/in") is True
        assert await sbx.files.make_dir("top/in") is False
        await sbx.files.write("top/in/f", "12345")
        assert await sbx.files.exists("top/in/f") and not await sbx.files.exists("top/in/g")
        deep = await sbx.files.list("top", depth=2)
        assert [e.path for e in deep] == ["/home/user/top/in", "/home/user/top/in/f"]
        f = await sbx.files.get_info("top/in/f")
        assert (f.name, f.size, f.mode, f.permissions, f.owner, f.group) == ("f", 5, 0o644, "-rw-r--r--", "user", "user")
        await sbx.commands.run("ln -s /home/user/top/in/f link")
        link = await sbx.files.get_info("link")
        assert (link.type.value, link.symlink_target) == ("file", "/home/user/top/in/f"), link
        moved = await sbx.files.rename("top/in/f", "new/place/g")
        assert moved.path == "/home/user/new/place/g"
        assert await sbx.files.read("new/place/g") == "12345"
        await sbx.files.remove("top")
        assert not await sbx.files.exists("top")


@test("files: signed addresses")
async def _():
    async with Box() as sbx:
        await sbx.files.write("signed.txt", "for whoever has the address")

        def get(url):
            try:
                with urllib.request.urlopen(url) as r:
                    return r.status, r.read().decode()
            except urllib.error.HTTPError as e:
                return e.code, ""

        url = sbx.download_url("signed.txt")
        assert await asyncio.to_thread(get, url) == (200, "for whoever has the address")
        assert (await asyncio.to_thread(get, url.replace("signed.txt", "other.txt")))[0] == 401
        late = sbx.download_url("signed.txt", use_signature_expiration=-10)
        assert (await asyncio.to_thread(get, late))[0] == 401


@test("files: watch")
async def _():
    async with Box() as sbx:
        await sbx.files.make_dir("w/sub")
        seen = []

        def note(e):
            seen.append(f"{e.type.value} {e.name}")

        if SYNC:
            h = await sbx.files.watch_dir("w", recursive=True)
        else:
            h = await sbx.files.watch_dir("w", on_event=note, recursive=True)

        async def saw(what):
            if SYNC:
                for e in await h.get_new_events():
                    note(e)
            return what in seen

        await sbx.files.write("w/sub/f", "x")
        await until(lambda: saw("create sub/f"), f"a creation: {seen}")
        await sbx.commands.run("echo more >> w/sub/f")
        await until(lambda: saw("write sub/f"), f"a write: {seen}")
        await sbx.files.remove("w/sub/f")
        await until(lambda: saw("remove sub/f"), f"a removal: {seen}")
        await h.stop()


class Watch:
    """Watches a directory with either SDK."""

    def __init__(self, sbx, path, **opts):
        self.sbx, self.path, self.opts, self.seen = sbx, path, opts, []

    async def __aenter__(self):
        if SYNC:
            self.h = await self.sbx.files.watch_dir(self.path, **self.opts)
        else:
            self.h = await self.sbx.files.watch_dir(self.path, on_event=self.seen.append, **self.opts)
        return self

    async def __aexit__(self, *_):
        await self.h.stop()

    async def saw(self, what):
        if SYNC:
            self.seen += await self.h.get_new_events()
        return next((e for e in self.seen if f"{e.type.value} {e.name}" == what), None)


@test("files: sizes are those of stat")
async def _():
    async with Box() as sbx:
        await sbx.files.make_dir("d/in")
        await sbx.files.write("d/f", "12345")
        await sbx.commands.run("ln -s f d/l; touch d/in/1 d/in/2")
        names = ["d", "d/f", "d/in", "d/l"]
        want = [int(n) for n in (await sbx.commands.run("stat -c %s " + " ".join(names))).stdout.split()]
        assert [(await sbx.files.get_info(n)).size for n in names] == want
        assert [(e.name, e.size) for e in await sbx.files.list("d")] == [("f", 5), ("in", want[2]), ("l", want[3])]


@test("files: to overwrite is to write")
async def _():
    async with Box() as sbx:
        await sbx.files.write("w/f", "a longer first")
        await sbx.commands.run("ln w/f hard; chmod 640 w/f")
        async with Watch(sbx, "w") as w:
            await sbx.files.write("w/f", "second")
            await sbx.files.write("w/g", "new")
            await until(lambda: w.saw("write g"), "a write")
            assert await w.saw("write f") and await w.saw("create g") and not await w.saw("create f"), w.seen
        assert await sbx.files.read("hard") == "second"
        assert (await sbx.commands.run('stat -c "%h %a" hard')).stdout == "2 640\n"


@test("files: metadata", "2.40.0")
async def _():
    async with Box() as sbx:
        w = await sbx.files.write("m/f", "x", metadata={"Author": "me", "kind": "a b"})
        assert w.metadata == {"author": "me", "kind": "a b"}, w
        assert (await sbx.files.get_info("m/f")).metadata == {"author": "me", "kind": "a b"}
        assert [e.metadata for e in await sbx.files.list("m")] == [{"author": "me", "kind": "a b"}]
        got = await sbx.commands.run("""python3 -c "import os; print(os.getxattr('m/f', 'user.e2b.author').decode())" """)
        assert got.stdout == "me\n"
        await sbx.files.write("m/f", "y", metadata={"kind": "other"})  # replaces all metadata
        assert (await sbx.files.get_info("m/f")).metadata == {"kind": "other"}
        await sbx.files.write("m/f", "z")
        assert (await sbx.files.get_info("m/f")).metadata is None
        both = await sbx.files.write_files([{"path": "m/1", "data": "1"}, {"path": "m/2", "data": "2"}], metadata={"k": "v"})
        assert [f.metadata for f in both] == [{"k": "v"}, {"k": "v"}]
        await raises(sbx.files.write("m/f", "x", metadata={"k": "v" * 5000}), "InvalidArgumentException", "SandboxException")


@test("files: watch with entries", "2.40.0")
async def _():
    async with Box() as sbx:
        await sbx.files.make_dir("w")
        async with Watch(sbx, "w", include_entry=True) as w:
            await sbx.files.write("w/f", "12345", metadata={"k": "v"})
            e = (await until(lambda: w.saw("write f"), "a write")).entry
            assert (e.path, e.type.value, e.owner, e.metadata) == ("/home/user/w/f", "file", "user", {"k": "v"}), e
            await sbx.files.remove("w/f")
            assert (await until(lambda: w.saw("remove f"), "a removal")).entry is None


@test("volumes: watched on request", "2.40.0")
async def _():
    vol = await kind("Volume").create("Vol_" + uuid.uuid4().hex)
    try:
        async with Box(volume_mounts={"/mnt/vol": getattr(vol, "it", vol)}) as sbx:
            await sbx.files.make_dir("/mnt/vol/d")
            if SYNC:
                e = await raises(sbx.files.watch_dir("/mnt/vol/d"), "InvalidArgumentException")
            else:
                e = await raises(sbx.files.watch_dir("/mnt/vol/d", on_event=print), "InvalidArgumentException")
            assert "network filesystem" in str(e)
            async with Watch(sbx, "/mnt/vol/d", allow_network_mounts=True) as w:
                await sbx.files.write("/mnt/vol/d/f", "x", metadata={"k": "v"})
                await until(lambda: w.saw("write f"), "a write")
            assert (await sbx.files.get_info("/mnt/vol/d/f")).metadata == {"k": "v"}
    finally:
        await kind("Volume").destroy(vol.volume_id)


@test("files: a large one")
async def _():
    async with Box() as sbx:
        data = b"abcdefgh" * 3_000_000
        await sbx.files.write("large", data)
        assert bytes(await sbx.files.read("large", format="bytes")) == data
        assert (await sbx.commands.run("sha256sum < large")).stdout[:64] == hashlib.sha256(data).hexdigest()


@test("a terminal")
async def _():
    async with Box() as sbx:
        out = bytearray()
        on = {} if SYNC else {"on_data": out.extend}
        h = await sbx.pty.create(e2b.PtySize(rows=30, cols=90), envs={"MARK": "mark"}, cwd="/tmp", **on)
        await sbx.pty.resize(h.pid, e2b.PtySize(rows=40, cols=100))
        await sbx.pty.send_stdin(h.pid, b"stty size; echo got-$MARK; pwd; exit 5\n")
        wait = h.wait(on_pty=out.extend) if SYNC else h.wait()
        e = await raises(wait, "CommandExitException")
        assert e.exit_code == 5
        assert re.search(rb"40 100[\s\S]*got-mark[\s\S]*/tmp", out), out
        h = await sbx.pty.create(e2b.PtySize(rows=30, cols=90), **on)
        assert await sbx.pty.kill(h.pid) is True
        assert await sbx.pty.kill(h.pid) is False


@test("pause and go on with memory", "2.10.0")
async def _():
    async with Box() as sbx:
        await sbx.files.write("f", "kept")
        h = await sbx.commands.run("sleep 1000", background=True, timeout=0)
        pause = sbx.pause if since("2.31.0") else sbx.beta_pause
        await pause()
        assert (await sbx.get_info()).state.value == "paused"
        again = await Sandbox.connect(sbx.sandbox_id, timeout=60)
        assert await again.files.read("f") == "kept"
        assert h.pid in [p.pid for p in await again.commands.list()]
        assert await again.commands.kill(h.pid) is True


@test("memory that is not kept, or not wanted", "2.63.0")
async def _():
    async with Box() as sbx:
        await sbx.files.write("f", "kept")
        await sbx.commands.run("sleep 1000", background=True, timeout=0)
        snap = await sbx.create_snapshot(mode="filesystem")
        copy = await Sandbox.create(template=snap.snapshot_id, timeout=60)
        assert await copy.files.read("f") == "kept"
        assert await copy.commands.list() == []
        await copy.kill()
        assert await Sandbox.delete_snapshot(snap.snapshot_id) is True
        await sbx.pause()
        again = await Sandbox.connect(sbx.sandbox_id, timeout=60, on_resume="reboot")
        assert await again.files.read("f") == "kept"
        assert await again.commands.list() == []
        await again.commands.run("sleep 1000", background=True, timeout=0)
        await sbx.pause(mode="filesystem")
        again = await Sandbox.connect(sbx.sandbox_id, timeout=60)
        assert await again.commands.list() == []
        assert (await again.commands.run("cat f")).stdout == "kept"


@test("fork", "2.45.0")
async def _():
    async with Box() as sbx:
        await sbx.files.write("f", "common")
        for one in await sbx.fork(count=2, timeout=60):
            assert await one.files.read("f") == "common"
            await one.kill()


@test("snapshots", "2.20.0")
async def _():
    async with Box() as sbx:
        await sbx.files.write("f", "then")
        snap = await sbx.create_snapshot()
        await sbx.files.write("f", "now")
        listed = sbx.list_snapshots()
        listed = await listed if hasattr(listed, "__await__") else listed
        assert [s.snapshot_id for s in await listed.next_items()] == [snap.snapshot_id]
        copy = await Sandbox.create(template=snap.snapshot_id, timeout=60)
        assert await copy.files.read("f") == "then"
        await copy.kill()
        assert await Sandbox.delete_snapshot(snap.snapshot_id) is True
        assert await Sandbox.delete_snapshot(snap.snapshot_id) is False


@test("metrics")
async def _():
    async with Box() as sbx:
        m = (await sbx.get_metrics())[0]
        assert m.cpu_count > 0 and m.mem_used > 0 and m.disk_total > 0, m


@test("git", "2.10.0")
async def _():
    async with Box() as sbx:
        await sbx.git.init("repo")
        await sbx.files.write("repo/f", "x")
        await sbx.git.add("repo")
        await sbx.git.commit("repo", "first", author_name="A", author_email="a@example.test")
        status = await sbx.git.status("repo")
        assert status.is_clean, status
