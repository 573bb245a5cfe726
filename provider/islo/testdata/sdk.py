"""The main flow of islo's official SDK, against the fake. The last line says that
all of it was done."""

import asyncio
import os
import sys
import tempfile

import httpx
from islo import AsyncIslo, Islo
from islo.custom import async_download_dir, async_download_file, async_upload_dir, async_upload_file, exec_and_wait, exec_and_wait_sync
from islo.errors import BadRequestError, NotFoundError, UnauthorizedError
from islo.types import AuthStrategySchema, LifecyclePolicy


def equal(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")


def raises(what, kind, call):
    try:
        call()
    except kind:
        return
    sys.exit(f"{what}: no {kind.__name__}")


client = Islo()
boxes = client.sandboxes
equal("regions", [r.is_default for r in client.tenants.list_tenant_compute_regions().regions], [True])
raises("unknown key", (UnauthorizedError, httpx.HTTPStatusError), lambda: Islo(api_key="ak_wrong").sandboxes.list_sandboxes())

# What may be reached, with every field.
gateway = client.gateway_profiles
profile = gateway.create_gateway_profile(
    name="sdk", description="of the SDK", default_action="deny", internet_enabled=True, is_default=False, cloud_role="6a1f", integration_policy={"mode": "custom", "keys": ["github"]}
)
first = gateway.create_gateway_rule(
    profile.id,
    host_pattern="api.example.com",
    path_pattern="/v1/*",
    methods=["GET", "POST"],
    action="allow",
    priority=10,
    rate_limit_rpm=60,
    provider_key="github",
    auth_strategy=AuthStrategySchema(mode="header", name="X-Token", format="token {}"),
    content_filter={"filter_type": "size_limit", "direction": "request", "pattern": "1000"},
)
second = gateway.create_gateway_rule(profile.id, host_pattern="*.example.com", action="deny", priority=20)
gateway.reorder_gateway_rules(profile.id, rules=[{"rule_id": first.id, "priority": 30}])
gateway.update_gateway_rule(profile.id, second.id, action="allow")
detail = gateway.get_gateway_profile(profile.id)
equal("rules", sorted((r.priority, r.action) for r in detail.rules), [(20, "allow"), (30, "allow")])
equal("profile", (detail.cloud_role is not None, detail.rule_count, detail.is_default), (True, 2, False))
gateway.delete_gateway_rule(profile.id, second.id)
gateway.update_gateway_profile(profile.id, description="changed")
equal("profiles", [(p.name, p.description) for p in gateway.list_gateway_profiles()], [("sdk", "changed")])

box = boxes.create_sandbox(
    name="sdk", vcpus=2, memory_mb=2048, disk_gb=5, env={"FROM": "env"}, gateway_profile="sdk", lifecycle=LifecyclePolicy(delete_after=3600, auto_resume="never"), request_id="r-1"
)
equal("created", (box.name, box.status, box.spec.vcpus, box.lifecycle.delete_after), ("sdk", "running", 2, 3600))
equal("by id", boxes.get_sandbox_by_id(box.id).name, "sdk")
equal("listed", [b.id for b in boxes.list_sandboxes(name_prefix="sd").items], [box.id])
raises("wrong lifetime", BadRequestError, lambda: boxes.create_sandbox(name="x", lifecycle=LifecyclePolicy(delete_after=61)))
raises("unknown sandbox", NotFoundError, lambda: boxes.get_sandbox("none"))

# Commands.
done = exec_and_wait_sync(client, "sdk", ["/bin/sh", "-c", "echo $FROM; echo oops >&2; exit 3"], workdir="/tmp", poll_interval=0.05)
equal("exec", (done.stdout, done.stderr, done.exit_code), ("env\n", "oops\n", 3))

# A pause keeps what runs, a stop keeps the files, and both keep the name.
exec_and_wait_sync(client, "sdk", ["/bin/sh", "-c", "echo kept >/tmp/kept"], poll_interval=0.05)
for change in (boxes.pause_sandbox, boxes.stop_sandbox):
    change("sdk")
    raises("standing still", Exception, lambda: boxes.exec_in_sandbox("sdk", command=["true"], request_options={"max_retries": 0}))
    equal("resumed", boxes.resume_sandbox("sdk").status, "running")
    equal("kept", exec_and_wait_sync(client, "sdk", ["cat", "/tmp/kept"], poll_interval=0.05).stdout, "kept\n")

# A snapshot has the files, and is its own.
snapshot = client.snapshots.create_snapshot(sandbox_name="sdk", name="first")
equal("snapshot", (snapshot.status, [s.name for s in client.snapshots.list_snapshots().items]), ("ready", ["first"]))
boxes.create_sandbox(name="fork", snapshot_name="first")
exec_and_wait_sync(client, "fork", ["/bin/sh", "-c", "echo fork >/tmp/kept"], poll_interval=0.05)
equal("forked from", exec_and_wait_sync(client, "sdk", ["cat", "/tmp/kept"], poll_interval=0.05).stdout, "kept\n")
boxes.delete_sandbox("fork")
client.snapshots.delete_snapshot("first")
raises("deleted snapshot", NotFoundError, lambda: client.snapshots.get_snapshot("first"))

# Sessions and shares.
boxes.create_session("sdk", name="main", command=["sleep", "1000"])
equal("sessions", [s.name for s in boxes.list_sessions("sdk").sessions], ["main"])
boxes.kill_session("sdk", "main")
share = client.shares.create_share("sdk", port=8080, ttl_seconds=60)
equal("shares", [s.share_id for s in client.shares.list_shares("sdk")], [share.share_id])
client.shares.revoke_share("sdk", share.share_id)


async def files():
    """Files and directories, to the byte."""
    other = AsyncIslo()
    data = bytes(range(256)) * 300
    with tempfile.TemporaryDirectory() as here:
        sent, got = os.path.join(here, "sent"), os.path.join(here, "got")
        with open(sent, "wb") as f:
            f.write(data)
        await async_upload_file(other, "sdk", sent, "/tmp/file")
        await async_download_file(other, "sdk", "/tmp/file", got)
        with open(got, "rb") as f:
            equal("file", f.read(), data)
        tree = os.path.join(here, "tree")
        os.makedirs(os.path.join(tree, "deep"))
        os.replace(sent, os.path.join(tree, "deep", "file"))
        await async_upload_dir(other, "sdk", tree, "/tmp/tree")
        done = await exec_and_wait(other, "sdk", ["cmp", "/tmp/file", "/tmp/tree/deep/file"], poll_interval=0.05)
        equal("directory", done.exit_code, 0)
        await async_download_dir(other, "sdk", "/tmp/tree", os.path.join(here, "back"))
        equal("directory back", any("file" in names for _, _, names in os.walk(os.path.join(here, "back"))), True)


asyncio.run(files())

boxes.delete_sandbox("sdk")
raises("deleted", NotFoundError, lambda: boxes.get_sandbox("sdk"))
gateway.delete_gateway_profile(profile.id)
equal("left", (client.snapshots.list_snapshots().total, gateway.list_gateway_profiles()), (0, []))
print("all of it was done")
