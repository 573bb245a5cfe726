"""The main flow of Modal's official SDK, against the fake. The last line says
that all of it was done."""

import os
import subprocess
import sys

import modal


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


raises("an app that is missing", modal.exception.NotFoundError, lambda: modal.App.lookup("none"))
app = modal.App.lookup("sdk", create_if_missing=True)
equal("app", modal.App.lookup("sdk").app_id, app.app_id)
image = modal.Image.from_registry("debian:12").build(app)
missing = modal.Image.from_registry("missing:1")
raises("an image that is missing", modal.exception.Error, lambda: missing.build(app))

box = modal.Sandbox.create(
    app=app, image=image, name="one", tags={"run": "7"}, timeout=600, cpu=(0.5, 1), memory=(256, 512), outbound_domain_allowlist=["api.example.com"], outbound_cidr_allowlist=["192.0.2.0/24"]
)
equal("running", box.poll(), None)
equal("tags", box.get_tags(), {"run": "7"})
raises("a name that is taken", modal.exception.AlreadyExistsError, lambda: modal.Sandbox.create(app=app, image=image, name="one"))
raises("unknown", modal.exception.NotFoundError, lambda: modal.Sandbox.from_id("sb-unknown"))
equal("by name", modal.Sandbox.from_name("sdk", "one", include_terminated=False).object_id, box.object_id)
others = [modal.Sandbox.create(app=app, image=image, block_network=True) for _ in range(4)]
equal("list", sorted(b.object_id for b in modal.Sandbox.list(app_id=app.app_id)), sorted(b.object_id for b in [box, *others]))
equal("list by tags", [b.object_id for b in modal.Sandbox.list(app_id=app.app_id, tags={"run": "7"})], [box.object_id])
for other in others:
    other.terminate()
equal("terminated", {other.wait(raise_on_termination=False) or other.returncode for other in others}, {137})

run = box.exec("sh", "-c", "echo $A; echo err >&2; exit 3", env={"A": "hello"})
equal("exec", (run.stdout.read(), run.stderr.read(), run.wait()), ("hello\n", "err\n", 3))
text = box.exec("cat", workdir="/tmp")
text.stdin.write("one\n")
text.stdin.drain()
text.stdin.write("two\n")
text.stdin.write_eof()
text.stdin.drain()
equal("stdin", (text.stdout.read(), text.wait()), ("one\ntwo\n", 0))
data = os.urandom(300_000)
copy = box.exec("cat", text=False)
copy.stdin.write(data)
copy.stdin.write_eof()
copy.stdin.drain()
equal("bytes", copy.stdout.read(), data)
slow = box.exec("sh", "-c", "kill -9 $$")
equal("killed", slow.wait(), 137)

box.exec("sh", "-c", "echo kept >/root/note").wait()
saved = box.snapshot_filesystem(ttl=None)
saved.publish("sdk-saved:one")
again = modal.Sandbox.create(app=app, image=modal.Image.from_name("sdk-saved:one"))
equal("snapshot", again.exec("cat", "/root/note").stdout.read(), "kept\n")
again.terminate()
box.set_tags({"run": "8"})
equal("new tags", box.get_tags(), {"run": "8"})
box.terminate()
box.wait(raise_on_termination=False)
equal("ended", modal.Sandbox.from_id(box.object_id).poll(), 137)
names = [sys.executable, "-m", "modal", "image", "names"]
equal("names", "sdk-saved:one" in subprocess.check_output([*names, "list", "--json"], text=True), True)
subprocess.check_output([*names, "delete", "--yes", "sdk-saved:one"])
raises("a name that is deleted", modal.exception.NotFoundError, lambda: modal.Sandbox.create(app=app, image=modal.Image.from_name("sdk-saved:one")))
modal.experimental.image_delete(saved.object_id)
print("all of it was done")
