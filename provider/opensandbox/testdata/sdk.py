"""The main flow of OpenSandbox's official SDK, against the fake. The last line
says that all of it was done."""

import sys
from datetime import timedelta

from opensandbox import SandboxManagerSync, SandboxSync
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule, SandboxFilter, SnapshotFilter


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, status, call):
    try:
        call()
    except SandboxApiException as e:
        equal(what, e.status_code, status)
        return
    sys.exit(f"{what}: no error")


config = ConnectionConfigSync(use_server_proxy=True)
manager = SandboxManagerSync.create(config)
raises("unknown", 404, lambda: manager.get_sandbox_info("unknown"))
raises("a key that is not known", 401, lambda: SandboxManagerSync.create(ConnectionConfigSync(api_key="x")).get_sandbox_info("unknown"))

policy = NetworkPolicy(default_action="deny", egress=[NetworkRule(action="allow", target="api.example.com")])
box = SandboxSync.create(
    "python:3.12", connection_config=config, timeout=timedelta(minutes=10), env={"A": "hello"}, metadata={"run": "7"},
    resource={"cpu": "1", "memory": "512Mi"}, network_policy=policy,
)
info = box.get_info()
equal("state", (info.status.state, info.metadata, info.image.image), ("Running", {"run": "7"}, "python:3.12"))
equal("lifetime", info.expires_at - info.created_at > timedelta(minutes=9), True)
equal("policy", [(r.action, r.target) for r in box.get_egress_policy().egress], [("allow", "api.example.com")])

others = [SandboxSync.create("python:3.12", connection_config=config, metadata={"run": "8"}) for _ in range(4)]
found, page = [], 1
while True:
    some = manager.list_sandbox_infos(SandboxFilter(metadata={"run": "8"}, page=page, page_size=2))
    found += [i.id for i in some.sandbox_infos]
    if not some.pagination.has_next_page:
        break
    page += 1
equal("list", sorted(found), sorted(o.id for o in others))
for other in others:
    other.kill()
    raises("killed", 404, other.get_info)

run = box.commands.run("echo $A; echo; echo err >&2; printf end; exit 3")
equal("stdout", [m.text for m in run.logs.stdout], ["hello", "\n", "end"])
equal("stderr", [m.text for m in run.logs.stderr], ["err"])
equal("exit code", run.exit_code, 3)
equal("arguments", box.commands.run(["printf", "%s", "$A"]).logs.stdout[0].text, "$A")
equal("exit code of a success", box.commands.run("true").exit_code, 0)

data = bytes(range(256)) * 1000
box.files.write_file("/tmp/data", data)
equal("file", box.files.read_bytes("/tmp/data"), data)
raises("a file that is missing", 404, lambda: box.files.read_bytes("/tmp/none"))

equal("metadata", box.patch_metadata({"run": "9", "more": "x"}).metadata, {"run": "9", "more": "x"})
equal("metadata without", box.patch_metadata({"more": None}).metadata, {"run": "9"})
box.renew(timedelta(minutes=20))
equal("renewed", box.get_info().expires_at - info.created_at > timedelta(minutes=19), True)
kept = manager.create_snapshot(box.id, "kept")
while kept.status.state != "Ready":
    kept = manager.get_snapshot(kept.id)
equal("snapshots", [s.name for s in manager.list_snapshots(SnapshotFilter(name="kept")).snapshot_infos], ["kept"])
copy = SandboxSync.create(snapshot_id=kept.id, connection_config=config)
equal("copy", copy.files.read_bytes("/tmp/data"), data)
copy.kill()
manager.delete_snapshot(kept.id)
raises("a snapshot that was removed", 404, lambda: manager.get_snapshot(kept.id))

box.pause()
equal("paused", box.get_info().status.state, "Paused")
again = SandboxSync.resume(box.id, connection_config=config)
equal("resumed", again.commands.run("wc -c </tmp/data").logs.stdout[0].text.strip(), str(len(data)))
again.kill()
raises("ended", 404, again.get_info)
print("all of it was done")
