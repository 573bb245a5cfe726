"""The main flow of Blaxel's official SDK, against the fake. The last line says
that all of it was done."""

import sys

from blaxel.core import SyncSandboxInstance as Sandbox
from blaxel.core.sandbox import SandboxAPIError
from blaxel.core.sandbox.types import ResponseError, SandboxUpdateMetadata


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, status, call):
    try:
        call()
    except kind as e:
        equal(what, getattr(e, "status_code", None) or getattr(e, "status", None), status)
        return
    sys.exit(f"{what}: no {kind.__name__}")


asked = {
    "name": "sdk",
    "image": "blaxel/base-image:latest",
    "memory": 2048,
    "region": "us-pdx-1",
    "ttl": "10m",
    "labels": {"run": "7"},
    "envs": [{"name": "A", "value": "hello"}],
    "network": {"proxy": {"allowedDomains": ["api.example.com"]}, "firewall": {"rulesets": ["proxy"]}},
}
box = Sandbox.create(asked)
box = Sandbox.get("sdk")
equal("status", (str(box.status), box.metadata.name, box.spec.runtime.memory, box.spec.runtime.ttl), ("DEPLOYED", "sdk", 2048, "10m"))
equal("labels", box.metadata.labels.to_dict(), {"run": "7"})
equal("network", (box.spec.network.proxy.allowed_domains, box.spec.network.firewall.rulesets), (["api.example.com"], ["proxy"]))
raises("a name that is taken", SandboxAPIError, 409, lambda: Sandbox.create(asked))
equal("the same", Sandbox.create_if_not_exists(asked).metadata.created_at, box.metadata.created_at)
raises("an invalid name", SandboxAPIError, 400, lambda: Sandbox.create({**asked, "name": "A_B"}))
raises("a short lifetime", SandboxAPIError, 400, lambda: Sandbox.create({**asked, "name": "short", "ttl": "10s"}))
raises("unknown", SandboxAPIError, 404, lambda: Sandbox.get("unknown"))
others = [Sandbox.create({**asked, "name": f"sdk-{n}"}).metadata.name for n in range(4)]
equal("list", sorted(b.metadata.name for b in Sandbox.list().auto_paging_iter()), ["sdk", *others])
for other in others:
    Sandbox.delete(other)
equal("deleted", {str(Sandbox.get(other).status) for other in others}, {"TERMINATED"})

run = box.process.exec({"command": "echo $A; echo err >&2; exit 3", "wait_for_completion": True})
equal("exec", (run.status.value, run.exit_code, run.stdout, run.stderr), ("failed", 3, "hello\n", "err\n"))
out, err = [], []
run = box.process.exec({
    "command": "echo one; sleep 0.2; echo two; echo three >&2", "wait_for_completion": True, "keep_alive": True, "timeout": 0,
    "on_stdout": out.append, "on_stderr": err.append,
})
equal("streamed", ("".join(out), "".join(err), run.exit_code), ("one\ntwo\n", "three\n", 0))
box.process.exec({"name": "later", "command": "echo later"})
equal("wait", (box.process.wait("later").exit_code, box.process.logs("later", "stdout")), (0, "later\n"))
box.process.exec({"name": "hung", "command": "sleep 1000"})
raises("a name in use", ResponseError, 400, lambda: box.process.exec({"name": "hung", "command": "true"}))
box.process.kill("hung")
equal("killed", box.process.wait("hung").exit_code != 0, True)

box.fs.write("/tmp/dir/text", "text")
equal("text", box.fs.read("/tmp/dir/text"), "text")
for size in (1000, 6 << 20):
    data = bytes(range(256)) * (size // 256)
    box.fs.write_binary("/tmp/data", data)
    equal("file", box.fs.read_binary("/tmp/data"), data)
raises("no file", ResponseError, 404, lambda: box.fs.read("/tmp/none"))

equal("metadata", Sandbox.update_metadata("sdk", SandboxUpdateMetadata(labels={"run": "8"})).metadata.labels.to_dict(), {"run": "8"})
equal("archived", str(box.archive(interval=50).status), "ARCHIVED")
raises("archived", ResponseError, 404, lambda: box.process.exec({"command": "true", "wait_for_completion": True}))
equal("restored", str(box.unarchive(interval=50).status), "DEPLOYED")
equal("kept", box.process.exec({"command": "wc -c </tmp/data", "wait_for_completion": True}).stdout.strip(), str(len(data)))
box.delete()
equal("ended", str(Sandbox.get("sdk").status), "TERMINATED")
print("all of it was done")
