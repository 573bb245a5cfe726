"""The main flow of Daytona's official SDK, against the fake. The last line says
that all of it was done."""

import asyncio
import sys

from daytona import CreateSandboxFromSnapshotParams, Daytona, DaytonaError, DaytonaNotFoundError, SessionExecuteRequest


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


client = Daytona()
box = client.create(CreateSandboxFromSnapshotParams(name="sdk", labels={"run": "7"}, domain_allow_list="api.example.com", ttl_minutes=60, auto_stop_interval=0))
equal("state", (box.state.value, box.name, box.labels["run"], box.domain_allow_list), ("started", "sdk", "7", "api.example.com"))
raises("the same name", DaytonaError, lambda: client.create(CreateSandboxFromSnapshotParams(name="sdk")))
raises("a snapshot that is missing", DaytonaError, lambda: client.create(CreateSandboxFromSnapshotParams(snapshot="none")))
equal("by name", client.get("sdk").id, box.id)
equal("list", [b.id for b in client.list()], [box.id])
raises("unknown", DaytonaNotFoundError, lambda: client.get("unknown"))

run = box.process.exec("echo $A; exit 3", cwd="/", env={"A": "hello"}, timeout=30)
equal("exec", (run.exit_code, run.result), (3, "hello\n"))

box.process.create_session("s")
done = box.process.execute_session_command("s", SessionExecuteRequest(command="echo out; echo err >&2; exit 4"))
equal("session", (done.exit_code, done.stdout, done.stderr), (4, "out\n", "err\n"))
later = box.process.execute_session_command("s", SessionExecuteRequest(command="echo one; sleep 0.2; echo two; echo three >&2", run_async=True))
out, err = [], []
asyncio.run(box.process.get_session_command_logs_async("s", later.cmd_id, out.append, err.append))
equal("logs", ("".join(out), "".join(err)), ("one\ntwo\n", "three\n"))
for _ in range(100):
    code = box.process.get_session_command("s", later.cmd_id).exit_code
    if code is not None:
        break
equal("exit code", code, 0)
box.process.delete_session("s")

data = bytes(range(256)) * 1000
box.fs.upload_file(data, "/tmp/data")
equal("file", box.process.exec("wc -c </tmp/data", timeout=30).result.strip(), str(len(data)))

box.set_labels({"run": "8"})
equal("labels", client.get(box.id).labels["run"], "8")
box.create_snapshot("saved", timeout=120)
copy = client.create(CreateSandboxFromSnapshotParams(name="copy", snapshot="saved"), timeout=120)
equal("copy", copy.process.exec("wc -c </tmp/data", timeout=30).result.strip(), str(len(data)))
equal("snapshots", [s.name for s in client.snapshot.list().items], ["saved"])
client.delete(copy)
client.snapshot.delete(client.snapshot.get("saved"))
equal("no snapshots", client.snapshot.list().total, 0)

box.stop()
equal("stopped", client.get("sdk").state.value, "stopped")
box.start()
equal("started again", box.process.exec("wc -c </tmp/data", timeout=30).result.strip(), str(len(data)))
client.delete(box)
raises("deleted", DaytonaNotFoundError, lambda: client.get("sdk"))
print("all of it was done")
