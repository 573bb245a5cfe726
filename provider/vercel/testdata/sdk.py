"""The main flow of Vercel's official SDK, against the fake. The last line says
that all of it was done."""

import os
import sys

from vercel.sandbox.sync import NetworkPolicy, NetworkPolicySubnets, SandboxApiError, SandboxQueryByCreatedAt, SandboxServiceOptions, SnapshotSource, SyncSandboxClient, TagFilter


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def refused(what, status, call):
    try:
        call()
    except SandboxApiError as err:
        equal(what, err.status_code, status)
        return
    sys.exit(f"{what}: not refused")


client = SyncSandboxClient.create(options=SandboxServiceOptions(base_url=os.environ["ATOLL_VERCEL_URL"]))
policy = NetworkPolicy.custom({"api.example.com": []}, NetworkPolicySubnets(allow=("192.0.2.0/24",)))
box = client.create_sandbox(name="sdk", tags={"run": "7"}, env={"A": "hello"}, execution_time_limit=600, persistent=True, network_policy=policy, destroy=False)
equal("status", (box.name, box.status.value, box.tags["run"]), ("sdk", "running", "7"))
equal("policy", (box.network_policy.allowed_domains, tuple(box.network_policy.subnets.allow)), (("api.example.com",), ("192.0.2.0/24",)))
refused("the same name", 409, lambda: client.create_sandbox(name="sdk"))
refused("an image that is missing", 400, lambda: client.create_sandbox(image="none"))
refused("unknown", 404, lambda: client.get_sandbox(name="unknown"))
others = [client.create_sandbox(name=f"other-{n}", tags={"run": "8"}, destroy=False) for n in range(4)]
equal("list", sorted(b.name for b in client.query_sandboxes(query=SandboxQueryByCreatedAt(tag=TagFilter(key="run", value="8")))), [f"other-{n}" for n in range(4)])
for other in others:
    other.destroy()

run = box.run_process("/bin/sh", ["-c", "echo $A; echo err >&2; exit 3"], cwd="/", capture_output=True)
equal("run", (run.returncode, run.stdout, run.stderr), (3, "hello\n", "err\n"))
later = box.create_process("/bin/sh", ["-c", "echo one; sleep 0.2; echo two"], cwd="/")
equal("wait", later.wait(), 0)
hung = box.create_process("/bin/sleep", ["1000"], cwd="/")
hung.kill()
equal("killed", hung.wait() != 0, True)

data = bytes(range(256)) * 1000
box.fs.write_bytes("/tmp/data", data)
equal("file", box.fs.read_bytes("/tmp/data"), data)

first = box.session().id
box.stop()
equal("stopped", client.get_sandbox(name="sdk").status.value, "stopped")
again = client.resume_sandbox(name="sdk")
equal("started again", again.run_process("wc", ["-c", "/tmp/data"], cwd="/", capture_output=True).stdout.split()[0], str(len(data)))
equal("another session", again.session().id != first, True)
session = again.session()
saved = session.snapshot(expiration=0)
equal("snapshot", (saved.status, saved.expires_at, saved.source_session_id), ("created", None, session.id))
equal("stopped by its snapshot", client.get_sandbox(name="sdk").status.value, "stopped")
equal("snapshots", saved.id in [s.id for s in client.query_snapshots(name="sdk")], True)
copy = client.create_sandbox(name="copy", source=SnapshotSource(snapshot_id=saved.id), destroy=False)
equal("copy", copy.run_process("wc", ["-c", "/tmp/data"], cwd="/", capture_output=True).stdout.split()[0], str(len(data)))
copy.destroy(delete_orphan_snapshots=True)
equal("kept", client.get_snapshot(snapshot_id=saved.id).size_bytes > 0, True)
saved.delete()
equal("deleted", saved.status, "deleted")
refused("a snapshot that was deleted", 404, lambda: client.get_snapshot(snapshot_id=saved.id))
again.destroy(delete_orphan_snapshots=True)
refused("destroyed", 404, lambda: client.get_sandbox(name="sdk"))
client.close()
print("all of it was done")
