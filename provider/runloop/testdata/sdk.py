"""The main flow of Runloop's official SDK, against the fake. The last line says
that all of it was done."""

import sys

import runloop_api_client as sdk


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


client = sdk.Runloop(max_retries=0)
policy = client.network_policies.create(name="sdk", allowed_hostnames=["api.example.com"], allowed_cidrs=[{"cidr": "192.0.2.0/24"}])
equal("policy", (policy.egress.allow_all, policy.egress.allowed_hostnames, policy.egress.allowed_cidrs[0].cidr), (False, ["api.example.com"], "192.0.2.0/24"))
equal("policies", [p.id for p in client.network_policies.list(name="sdk")], [policy.id])
box = client.devboxes.create(
    name="sdk", metadata={"run": "7"}, environment_variables={"A": "hello"}, launch_parameters={"keep_alive_time_seconds": 600, "network_policy_id": policy.id}
)
box = client.devboxes.retrieve(box.id)
equal("status", (box.status, box.name, box.metadata["run"], box.launch_parameters.network_policy_id), ("running", "sdk", "7", policy.id))
raises("a blueprint that is missing", sdk.BadRequestError, lambda: client.devboxes.create(blueprint_name="none"))
raises("unknown", sdk.NotFoundError, lambda: client.devboxes.retrieve("unknown"))
others = [client.devboxes.create(name="sdk").id for _ in range(4)]
equal("list", sorted(b.id for b in client.devboxes.list(limit=3)), sorted([box.id, *others]))
for other in others:
    client.devboxes.shutdown(other)
equal("shut down", {client.devboxes.retrieve(other).status for other in others}, {"shutdown"})

run = client.devboxes.execute(box.id, command="echo $A; echo err >&2; exit 3", command_id="0193b0a0-0000-7000-8000-000000000001")
equal("execute", (run.status, run.exit_status, run.stdout, run.stderr), ("completed", 3, "hello\n", "err\n"))
later = client.devboxes.execute_async(box.id, command="echo one; sleep 0.2; echo two; echo three >&2")
equal("stdout", "".join(c.output for c in client.devboxes.executions.stream_stdout_updates(later.execution_id, devbox_id=box.id)), "one\ntwo\n")
equal("stderr", "".join(c.output for c in client.devboxes.executions.stream_stderr_updates(later.execution_id, devbox_id=box.id)), "three\n")
equal("exit code", client.devboxes.executions.retrieve(later.execution_id, devbox_id=box.id).exit_status, 0)
hung = client.devboxes.execute_async(box.id, command="sleep 1000")
client.devboxes.executions.kill(hung.execution_id, devbox_id=box.id, kill_process_group=True)
for _ in range(100):
    code = client.devboxes.executions.retrieve(hung.execution_id, devbox_id=box.id).exit_status
    if code is not None:
        break
equal("killed", code != 0, True)

data = bytes(range(256)) * 1000
client.devboxes.upload_file(box.id, path="/tmp/data", file=data)
equal("file", client.devboxes.download_file(box.id, path="/tmp/data").read(), data)

equal("metadata", client.devboxes.update(box.id, metadata={"run": "8"}).metadata, {"run": "8"})
client.devboxes.suspend(box.id)
equal("suspended", client.devboxes.retrieve(box.id).status, "suspended")
client.devboxes.resume(box.id)
again = client.devboxes.execute(box.id, command="wc -c </tmp/data", command_id="0193b0a0-0000-7000-8000-000000000002")
equal("resumed", again.stdout.strip(), str(len(data)))
saved = client.devboxes.snapshot_disk_async(box.id, name="sdk", metadata={"run": "9"})
done = client.devboxes.disk_snapshots.await_completed(saved.id)
equal("snapshot", (done.status, done.snapshot.name, done.snapshot.source_devbox_id, done.snapshot.size_bytes > 0), ("complete", "sdk", box.id, True))
equal("snapshots", [s.id for s in client.devboxes.disk_snapshots.list(extra_query={"metadata[run]": "9"})], [saved.id])
equal("no snapshots", [s.id for s in client.devboxes.disk_snapshots.list(extra_query={"metadata[run]": "8"})], [])
copy = client.devboxes.create(snapshot_id=saved.id)
same = client.devboxes.execute(copy.id, command="wc -c </tmp/data", command_id="0193b0a0-0000-7000-8000-000000000003")
equal("copy", same.stdout.strip(), str(len(data)))
client.devboxes.shutdown(copy.id)
client.devboxes.disk_snapshots.delete(saved.id)
raises("a snapshot that was deleted", sdk.NotFoundError, lambda: client.devboxes.disk_snapshots.query_status(saved.id))
client.devboxes.shutdown(box.id)
equal("ended", client.devboxes.retrieve(box.id).status, "shutdown")
print("all of it was done")
