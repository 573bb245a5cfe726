"""Cases of templates, volumes, secrets, networks and Git."""

import json
import os
import tempfile
import urllib.error
import urllib.request
import uuid

import e2b

from harness import SYNC, Box, Sandbox, Waited, kind, raises, since, test, until


def unique(name):
    return f"{name}-{uuid.uuid4().hex[:6]}"


def api(method, path, body=None):
    base = os.environ.get("E2B_API_URL") or "https://api." + os.environ["E2B_DOMAIN"]
    headers = {"X-API-Key": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(base + path, method=method, headers=headers, data=data)
    with urllib.request.urlopen(request) as r:
        return r.read()


def template(**opts):
    return e2b.Template(**opts) if SYNC else e2b.AsyncTemplate(**opts)


@test("a template, as old SDKs build it")
async def _():
    Template = kind("Template")
    name = unique("old")
    how = {} if since("2.20.0") else {"alias": name, "cpu_count": 1, "memory_mb": 1024}
    args = [name] if since("2.20.0") else []
    await Template.build(template().from_base_image().run_cmd("echo old > /tmp/old"), *args, **how)
    sbx = await Sandbox.create(template=name, timeout=60)
    assert (await sbx.commands.run("cat /tmp/old")).stdout == "old\n"
    await sbx.kill()
    if not since("2.7.0"):
        api("DELETE", f"/templates/{name}")
        return
    info = await Template.build_in_background(template().from_template(name).run_cmd("true"), *args, **how)

    async def over():
        return (await Template.get_build_status(info)).status not in ("building", "waiting")

    await until(over, "the build is over")
    api("DELETE", f"/templates/{name}")


@test("what was called beta, and what is not there")
async def _():
    async with Box() as sbx:
        if hasattr(sbx.it if SYNC else sbx, "beta_pause"):
            await sbx.beta_pause()
            assert (await sbx.get_info()).state.value == "paused"
            await Sandbox.connect(sbx.sandbox_id, timeout=60)
        if hasattr(e2b.Sandbox, "beta_create"):
            other = await Sandbox.beta_create(auto_pause=True, timeout=60)
            assert await other.is_running()
            await other.kill()
        if hasattr(e2b.Sandbox, "get_mcp_token"):
            await raises(sbx.get_mcp_token(), "NotFoundException")


@test("a template: files, commands, variables, users; tags", "2.20.0")
async def _():
    Template = kind("Template")
    name = unique("tools")
    with tempfile.TemporaryDirectory() as dir:
        os.mkdir(dir + "/app")
        with open(dir + "/app/main.txt", "w") as f:
            f.write("main")
        built = (
            template(file_context_path=dir)
            .from_base_image()
            .set_envs({"GREETING": "hello there"})
            .copy("app", "/home/user/app")
            .set_workdir("/home/user/app")
            .run_cmd('echo "$GREETING" > /tmp/said; id -un > /tmp/who; echo to the log', user="root")
            .make_dir("/home/user/made")
        )
        logs = []
        info = await Template.build(built, f"{name}:v1", on_build_logs=lambda e: logs.append(e.message))
    try:
        assert any("to the log" in line for line in logs), logs
        sbx = await Sandbox.create(template=f"{name}:v1", timeout=60)
        out = (await sbx.commands.run("cat main.txt /tmp/said /tmp/who; ls ..; echo $GREETING")).stdout
        await sbx.kill()
        assert out == "mainhello there\nroot\napp\nmade\nhello there\n", out
        assert await Template.exists(name) and await Template.alias_exists(name)
        tagged = await Template.assign_tags(f"{name}:v1", ["stable"])
        assert (tagged.tags, tagged.build_id) == (["stable"], info.build_id)
        assert sorted(t.tag for t in await Template.get_tags(name)) == ["stable", "v1"]
        await Template.remove_tags(name, ["stable"])
        bad = template().from_template(f"{name}:v1").run_cmd("exit 3")
        await raises(Template.build(bad, unique("bad")), "BuildException")
        again = await Template.build_in_background(template().from_template(f"{name}:v1").run_cmd("true"), unique("child"))

        async def over():
            return (await Template.get_build_status(again)).status.value in ("ready", "error")

        await until(over, "the build is over")
        assert (await Template.get_build_status(again)).status.value == "ready"
        api("DELETE", f"/templates/{again.template_id}")
    finally:
        api("DELETE", f"/templates/{name}")
    assert not await Template.exists(name)


# The SDK has no method to publish one; `e2b template publish` sends this request.
@test("a public template, and another tenant", "2.20.0")
async def _():
    Template, name = kind("Template"), unique("public")
    rival, full = {"api_key": os.environ["E2B_TEST_RIVAL"]}, f"default/{name}"
    await Template.build(template().from_base_image().run_cmd("echo shared > /home/user/shared"), name)
    try:
        await raises(Sandbox.create(template=full, timeout=60, **rival), "NotFoundException", "SandboxException")
        said = json.loads(api("PATCH", f"/v2/templates/{name}", {"public": True}))
        assert said["names"] == [full], said
        async with Box(template=full, **rival) as sbx:
            assert await sbx.files.read("shared") == "shared\n"
            assert await Template.exists(full, **rival) and not await Template.exists(name, **rival)
            await Template.build(template().from_template(full).run_cmd("cat /home/user/shared > /home/user/copy"), name, **rival)
            async with Box(template=name, **rival) as own:
                assert await own.files.read("copy") == "shared\n"
            await raises(Template.assign_tags(full, ["mine"], **rival), "TemplateException", "NotFoundException", "SandboxException")
            api("PATCH", f"/v2/templates/{name}", {"public": False})
            await raises(Sandbox.create(template=full, timeout=60, **rival), "NotFoundException", "SandboxException")
            assert await sbx.files.read("shared") == "shared\n"
    finally:
        api("DELETE", f"/templates/{name}")


@test("templates: a user that the image does not have", "2.20.0")
async def _():
    Template = kind("Template")
    for bad in template().from_base_image().set_user("Nobody-Here").run_cmd("true"), template().from_base_image().run_cmd("true", user="Nobody-Here"):
        e = await raises(Template.build(bad, unique("user")), "BuildException")
        assert "invalid username: 'Nobody-Here'" in str(e), e


@test("templates: set_user makes the user", "2.20.0")
async def _():
    Template, name = kind("Template"), unique("made")
    try:
        await Template.build(template().from_base_image().set_user("app").run_cmd("id -un > /home/app/who").set_workdir("/home/app"), name)
        sbx = await Sandbox.create(template=name, timeout=60)
        try:
            assert (await sbx.commands.run("id -un; pwd; cat who")).stdout == "app\n/home/app\napp\n"
            assert (await sbx.files.write("here", "x")).path == "/home/app/here"
            assert (await sbx.files.get_info("here")).owner == "app"
        finally:
            await sbx.kill()
    finally:
        api("DELETE", f"/templates/{name}")


@test("templates: several files, and links as links", "2.20.0")
async def _():
    Template, name = kind("Template"), unique("copy")
    with tempfile.TemporaryDirectory() as dir:
        os.makedirs(dir + "/folder/sub")
        for f in "one", "sub/three":
            with open(f"{dir}/folder/{f}", "w") as out:
                out.write(f + "\n")
        os.symlink("one", dir + "/folder/near")
        os.symlink("/etc/hostname", dir + "/folder/far")
        try:
            await Template.build(template(file_context_path=dir).from_base_image().copy("folder/*", "folder").copy("folder/far", "link"), name)
            sbx = await Sandbox.create(template=name, timeout=60)
            try:
                got = await sbx.commands.run("cd /home/user; find folder link | sort; readlink folder/near folder/far link; cat folder/sub/three")
                assert got.stdout == "folder\nfolder/far\nfolder/near\nfolder/one\nfolder/sub\nfolder/sub/three\nlink\none\n/etc/hostname\n/etc/hostname\nsub/three\n", got.stdout
            finally:
                await sbx.kill()
        finally:
            api("DELETE", f"/templates/{name}")


@test("an image of a registry that wants a password", "2.20.0")
async def _():
    image, username, password = (os.environ["E2B_TEST_" + what] for what in ("IMAGE", "USER", "PASSWORD"))
    Template, name = kind("Template"), unique("guarded")

    async def content(made):
        await Template.build(made, name)
        sbx = await Sandbox.create(template=name, timeout=60)
        try:
            return await sbx.files.read("/home/user/content")
        finally:
            await sbx.kill()

    try:
        for bad in template().from_image(image), template().from_image(image, username, "not " + password):
            await raises(Template.build(bad, name), "BuildException")
        assert await content(template().from_image(image, username, password)) == "guarded"
        await raises(Template.build(template().from_image(image), name), "BuildException")  # not available without a login
        try:
            api("PATCH", f"/v2/templates/{name}", {"public": True})
            raise AssertionError("a template with a password was published")
        except urllib.error.HTTPError as e:
            assert e.code == 403 and "needs a password" in e.read().decode()
        assert await content(template().from_gcp_registry(image, {"private_key": password})) == "guarded"
        await raises(Template.build(template().from_aws_registry(image, username, "not " + password, "eu-west-1"), name), "BuildException")
        assert await content(template().from_aws_registry(image, username, password, "eu-west-1")) == "guarded"
    finally:
        api("DELETE", f"/templates/{name}")


@test("a template is written out")
async def _():
    T = e2b.Template if SYNC else e2b.AsyncTemplate
    t = (
        template().from_image("debian:12").apt_install(["git"]).pip_install("six").npm_install("left-pad", g=True)
        .set_envs({"A": "b"}).copy("control.py", "/x").make_dir("/m").set_workdir("/m").make_symlink("/a", "/b").rename("/b", "/c").remove("/c", force=True).git_clone("https://example.test/x.git", "/x")
        .set_user("user").skip_cache().run_cmd("true")
    )
    if hasattr(t, "bun_install"):
        t = t.bun_install("left-pad")
    if hasattr(t, "copy_items"):
        t = t.copy_items([])
    assert "debian:12" in T.to_json(t)
    assert T.to_dockerfile(t).startswith("FROM debian:12\n")
    assert "80" in T.to_json(template().from_image("x").set_start_cmd("sleep 1", e2b.wait_for_port(80)))
    assert "80" in T.to_json(template().from_image("x").set_ready_cmd(e2b.wait_for_port(80)))
    template().skip_cache()
    for method in ["debian", "ubuntu", "fedora", "alpine", "arch", "python", "node", "bun"]:
        make = getattr(template(), f"from_{method}_image", None)
        if make:
            assert method in T.to_json(make())
    assert "echo x" in T.to_json(template().from_dockerfile("FROM debian:12\nRUN echo x\n"))
    assert "aws" in T.to_json(template().from_aws_registry("r/i", "a", "b", "c"))
    assert "gcp" in T.to_json(template().from_gcp_registry("r/i", {}))
    if hasattr(t, "add_mcp_server"):
        template().from_template("mcp-gateway").add_mcp_server("exa")
    if hasattr(t, "beta_dev_container_prebuild"):
        template().from_template("devcontainer").beta_dev_container_prebuild("/x").beta_set_dev_container_start("/x")


@test("volumes", "2.20.0")
async def _():
    Volume = kind("Volume")
    vol = await Volume.create("Vol_" + uuid.uuid4().hex[:8])
    try:
        assert (await Volume.connect(vol.volume_id)).token == vol.token
        assert (await Volume.get_info(vol.volume_id)).name == vol.name
        assert vol.volume_id in [v.volume_id for v in await Volume.list()]
        w = await vol.write_file("/a/f", "hellö", force=True)
        assert (w.path, w.size) == ("/a/f", 6), w
        assert await vol.read_file("/a/f") == "hellö"
        assert bytes(await vol.read_file("/a/f", format="bytes")) == "hellö".encode()
        await vol.make_dir("/d", mode=0o700)
        assert sorted(e.path for e in await vol.list("/")) == ["/a", "/d"]
        assert (await vol.update_metadata("/a/f", mode=0o600)).mode == 0o600
        assert (await vol.get_info("/a/f")).mode == 0o600
        async with Box(volume_mounts={"/mnt/data": vol.it if SYNC else vol}) as sbx:
            assert (await sbx.commands.run("cat /mnt/data/a/f; echo more > /mnt/data/g", user="root")).stdout == "hellö"
            assert await vol.read_file("/g") == "more\n"
        await vol.remove("/a")
        assert not await vol.exists("/a")
        await raises(vol.read_file("/a/f"), "VolumePathNotFoundException", "NotFoundException")
    finally:
        assert await Volume.destroy(vol.volume_id) is True
    assert await Volume.destroy(vol.volume_id) is False


@test("secrets", "2.60.0")
async def _():
    Secret = kind("Secret")
    name = unique("token")
    made = await Secret.create(name, "value-1", metadata={"team": "red"})
    try:
        assert (made.name, made.version, made.metadata) == (name, 1, {"team": "red"}), made
        assert (await Secret.update(name, "value-2")).version == 2
        assert (await Secret.get_info(made.secret_id)).name == name
        assert await Secret.exists(name)
        p = Secret.list()
        found = []
        while p.has_next:
            found += [s.name for s in await p.next_items()]
        assert name in found
        await raises(Secret.create(name, "x"), "SecretException")
    finally:
        assert await Secret.destroy(name) is True
    assert await Secret.destroy(name) is False
    assert not await Secret.exists(name)


if hasattr(e2b, "E2B"):

    @test("clients with options of their own")
    async def _():
        def of(client, name):
            return Waited(getattr(client, name)) if SYNC else getattr(client, "Async" + name)

        mine = e2b.E2B(api_key=os.environ["E2B_API_KEY"])
        other = e2b.E2B(api_key="e2b_" + "0" * 138)
        sbx = await of(mine, "Sandbox").create(timeout=60)
        try:
            assert (await sbx.commands.run("echo mine")).stdout == "mine\n"
            await raises(of(other, "Sandbox").connect(sbx.sandbox_id), "AuthenticationException")
            await raises(of(other, "Volume").list(), "AuthenticationException", "VolumeException")
            await raises(of(other, "Template").exists("no-such-template"), "AuthenticationException", "TemplateException")
            assert isinstance(await of(mine, "Volume").list(), list)
            assert not await of(mine, "Template").exists("no-such-template")
        finally:
            await sbx.kill()


@test("network: what is allowed, and another while it runs", "2.45.0")
async def _():
    async with Box(network={"allow_out": ["allowed.test"], "deny_out": [e2b.ALL_TRAFFIC]}) as sbx:

        async def knows(host):
            return (await sbx.commands.run(f"getent hosts {host} > /dev/null && echo known || echo unknown")).stdout.strip() == "known"

        assert await knows("allowed.test") and not await knows("other.test")
        await sbx.update_network({"allow_out": ["other.test"], "deny_out": [e2b.ALL_TRAFFIC]})
        await until(lambda: knows("other.test"), "the new rules hold")
        assert not await knows("allowed.test")


@test("network: DNS servers and a proxy", "2.63.0")
async def _():
    outside, password = os.environ["E2B_TEST_OUTSIDE"], os.environ["E2B_TEST_PASSWORD"]
    network = {"allow_out": ["named.test", "private.test", "unknown.test"], "deny_out": [e2b.ALL_TRAFFIC], "dns_servers": [outside]}
    proxy = {"address": f"{outside}:1080", "username": "me", "password": password}
    async with Box(network=network) as sbx:

        async def ask(host):
            return (await sbx.commands.run(f"curl -sS -m 30 http://{host}/ || true")).stdout

        assert await ask("named.test") == "named.test by proxy: false"
        assert await ask("private.test") == "" and await ask("unknown.test") == ""
        assert (await sbx.get_info()).network["dns_servers"] == [outside]
        await sbx.update_network({**network, "egress_proxy": proxy})
        assert await ask("named.test") == "named.test by proxy: true"
        assert (await sbx.get_info()).network["egress_proxy"] == {"address": proxy["address"], "username": "me"}
        assert await ask("private.test") == ""
        await sbx.update_network({**network, "egress_proxy": {**proxy, "tls": True}})
        assert await ask("named.test") == ""  # the proxy does not speak TLS
    for bad in ({"dns_servers": ["10.1.2.3"]}, {"dns_servers": ["::1"]}, {"egress_proxy": {"address": "10.1.2.3:1"}}):
        await raises(Sandbox.create(network={**network, **bad}), "InvalidArgumentException", "SandboxException")


@test("network: identity tokens of the sandbox", "2.63.0")
async def _():
    at = os.environ["E2B_TEST_IDENTITY"]
    token = e2b.Secret.iam_token(audience="cloud.test", token_type="JWT-SVID")
    opts = {
        "iam": {"tokens": {"my cloud": token}},
        "network": {
            "allow_out": [at],
            "rules": {at: [{"transform": lambda ctx: {"headers": {"Authorization": f"Bearer {ctx.iam.tokens['my cloud']}"}}}]},
        },
    }
    if os.environ.get("E2B_API_URL"):  # there is no name under which keys could be published
        await raises(Sandbox.create(**opts), "SandboxException")
        return
    async with Box(**opts) as sbx:

        async def ask(audience):
            return json.loads((await sbx.commands.run(f"curl -sS -m 30 'http://{at}/?audience={audience}'")).stdout)

        said = await ask("cloud.test")
        assert said.get("sub", "").endswith("/sandbox/" + sbx.sandbox_id.replace("sb", "sb-", 1)), said
        assert "audience" in (await ask("other.test"))["error"]
        assert "eyJ" not in (await sbx.commands.run("env; cat /proc/self/environ")).stdout


@test("snapshots: names and pages", "2.45.0")
async def _():
    async with Box() as sbx:
        name = unique("snap")
        await sbx.create_snapshot(name=name)
        await sbx.create_snapshot(name=f"{name}:v2")
        listed = sbx.list_snapshots(limit=1)
        listed = await listed if hasattr(listed, "__await__") else listed
        names = []
        while listed.has_next:
            for s in await listed.next_items():
                names += s.names
        assert sorted(names) == [f"{name}:default", f"{name}:v2"], names
        assert await Sandbox.delete_snapshot(name) is True


@test("input by the handle", "2.60.0")
async def _():
    async with Box() as sbx:
        h = await sbx.commands.run("cat; echo end", background=True, stdin=True)
        await h.send_stdin("text ")
        await h.close_stdin()
        assert (await h.wait()).stdout == "text end\n"


@test("a terminal is found again", "2.20.0")
async def _():
    async with Box() as sbx:
        on = {} if SYNC else {"on_data": lambda _: None}
        h = await sbx.pty.create(e2b.PtySize(rows=30, cols=90), **on)
        await h.disconnect()
        again = await sbx.pty.connect(h.pid, **on)
        if since("2.60.0"):
            if SYNC:
                await sbx.pty.stream_input(h.pid, [b"exit 4\n"])
            else:
                to = sbx.pty.stream_input(h.pid)
                await to.send(b"exit 4\n")
                await to.close()
        else:
            await sbx.pty.send_stdin(h.pid, b"exit 4\n")
        e = await raises(again.wait(), "CommandExitException")
        assert e.exit_code == 4


@test("git: branches, remotes, configuration", "2.20.0")
async def _():
    async with Box() as sbx:
        git = sbx.git
        repo, clone = "/home/user/repo", "/home/user/clone"
        await git.configure_user("A", "a@example.test")
        assert await git.get_config("user.name", scope="global") == "A"
        await sbx.commands.run("git init --bare -b main /home/user/origin.git")
        await git.init(repo, initial_branch="main")
        await git.set_config("core.abbrev", "12", scope="local", path=repo)
        await git.remote_add(repo, "origin", "/home/user/origin.git")
        assert await git.remote_get(repo, "origin") == "/home/user/origin.git"
        await sbx.files.write("repo/f", "one")
        await git.add(repo)
        await git.commit(repo, "first", author_name="A", author_email="a@example.test")
        await git.push(repo, remote="origin", branch="main", set_upstream=True)
        await git.clone("/home/user/origin.git", path=clone)
        await git.create_branch(clone, "side")
        await git.checkout_branch(clone, "main")
        assert sorted((await git.branches(clone)).branches) == ["main", "side"]
        await git.delete_branch(clone, "side", force=True)
        await sbx.files.write("clone/f", "changed")
        await git.restore(clone, paths=["f"], worktree=True)
        assert await sbx.files.read("clone/f") == "one"
        await git.reset(clone, mode="hard")
        await git.pull(clone, remote="origin", branch="main")
        await git.dangerously_authenticate(username="u", password="not-a-password", host="example.test")
        assert "example.test" in await sbx.files.read(".git-credentials")
