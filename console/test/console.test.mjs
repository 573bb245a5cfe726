// The console against the real daemon, in a real browser.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { createServer as createListener } from "node:net";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { browser, Daemon, freePort, look, looks, shots } from "./daemon.mjs";

const daemon = new Daemon();
let chrome;
let page;
const faults = []; // of the page, which would be defects

before(async () => {
  daemon.address = `127.0.0.1:${await freePort()}`;
  const hosts = join(daemon.dir, "hosts"); // names of servers of these tests
  writeFileSync(hosts, "127.0.0.1 served.test\n");
  await daemon.start("--egress-allow", "127.0.0.1", "--egress-hosts", hosts);
  chrome = await browser();
  const context = await chrome.newContext({
    viewport: { width: 1280, height: 800 },
  });
  page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (e) => faults.push(String(e)));
  page.on("response", (r) => {
    if (r.status() === 404 && r.url().includes("/v1/machines"))
      faults.push(`${r.url()} is asked for where there is none`);
  });
  page.on("console", (m) => {
    if (m.type() === "error" && /Content Security Policy/.test(m.text()))
      faults.push(m.text());
  });
});

after(async () => {
  await chrome?.close();
  await daemon.close();
});

afterEach((t) => page && shot("after-" + t.name.replace(/\W+/g, "-")));

const base = () => `http://${daemon.address}/console/`;
const show = (to) => page.goto(base() + "#" + to);
const shot = (name) => page.screenshot({ path: join(shots, name + ".png") });
const button = (name) => page.getByRole("button", { name, exact: true });

/** Expects a button that is off and says why, and does nothing. */
async function isOff(on, name, why) {
  const b = on.getByRole("button", { name, exact: true });
  assert.match((await b.getAttribute("title")) ?? "", why);
  assert.equal(await b.getAttribute("aria-disabled"), "true");
  await b.click({ force: true });
  assert.equal(await b.count(), 1);
}

/** Types into the terminal, and waits for a text in it. */
async function type(text, answer, timeout = 30_000) {
  await page.locator(".term:visible .xterm-helper-textarea").focus();
  await page.keyboard.type(text + "\n");
  await page.waitForFunction(
    (wanted) =>
      [...document.querySelectorAll(".term .xterm-rows")].some((r) =>
        r.textContent.includes(wanted),
      ),
    answer,
    { timeout },
  );
}

test("a link signs in once", async () => {
  const link = daemon.link();
  await page.goto(link);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.ok(!page.url().includes("code="), "the code stays in the address");
  const other = await chrome.newContext();
  const second = await other.newPage();
  await second.goto(link);
  await second.getByRole("alert").getByText("used already").waitFor();
  await other.close();
});

test("a sandbox is made, and its terminal answers", async () => {
  await button("New sandbox").click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name").fill("demo");
  await form.getByLabel("Memory").fill("512m");
  await form.getByLabel("Network").selectOption("hosts");
  await button("Why this provider?").click();
  await form.getByText("What holds in gvisor").waitFor();
  await shot("create");
  await form.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "demo" }).waitFor();
  await page.locator(".term .xterm").waitFor();
  await type("echo $((6*7))-answer", "42-answer");
  await shot("terminal");
});

test("a shell survives a reload of the page", async () => {
  await type("kept=yes; echo set-it", "set-it");
  await page.reload();
  await page.locator(".term .xterm").waitFor();
  await type("echo kept-$kept", "kept-yes");
});

test("a late viewer sees the screen, and one who only watches cannot type", async () => {
  const late = await chrome.newContext();
  const other = await late.newPage();
  await other.goto(daemon.link());
  await other.getByRole("heading", { name: "Overview" }).waitFor();
  await other.goto(base() + "#/sandboxes/demo/terminal");
  const rows = other.locator(".term .xterm-rows");
  await rows.getByText("kept-yes").first().waitFor();
  await other.getByText("2 viewers").waitFor();
  await other.getByRole("button", { name: "Only watch" }).click();
  await other.getByRole("button", { name: "Take control" }).waitFor();
  await rows.getByText("kept-yes").first().waitFor();
  await other.locator(".term .xterm-helper-textarea").focus();
  await other.keyboard.type("echo not-typed\n");
  await type("echo seen-$((40+2))", "seen-42");
  await rows.getByText("seen-42").first().waitFor();
  assert.doesNotMatch(await rows.textContent(), /not-typed/);
  await late.close();
});

test("a new terminal has a shell of its own, which stays", async () => {
  // The new one takes the focus when it is there.
  const chosen = page.locator(".bar button.primary", { hasText: /Shell/ });
  await button("New terminal").click();
  await chosen.waitFor();
  await page.locator(".term:visible .xterm").waitFor();
  await type("own=$((6*7)); echo own-$own", "own-42");
  await page.reload();
  await page.locator(".term .xterm").waitFor();
  await page.getByRole("button", { name: /^Shell/ }).click();
  await chosen.waitFor();
  await page.locator(".term:visible .xterm").waitFor();
  await type("echo again-$own", "again-42");
  await button("Shared shell").click();
});

test("a terminal is recorded, and the recording is played", async () => {
  await button("Record").click();
  await button("Stop recording").waitFor();
  await type("echo recorded-$((20+1))", "recorded-21");
  await shot("recording");
  await button("Stop recording").click();
  await button("Record").waitFor();
  await show("/recordings");
  await page.getByText("available").waitFor();
  await page.getByRole("button", { name: /^Play rec-/ }).click();
  await page.locator(".player .ap-term").waitFor();
  await page.locator(".player").getByText("recorded-21").first().waitFor();
  await shot("recordings-played");
  const saved = page.waitForEvent("download");
  await page.getByRole("button", { name: /^Download rec-/ }).click();
  const cast = readFileSync(await (await saved).path(), "utf8");
  assert.match(cast, /"version":2/);
  assert.match(cast, /recorded-21/);
  await page.getByRole("button", { name: /^Remove recording/ }).click();
  await page
    .getByRole("dialog")
    .getByRole("button", { name: /^Remove rec-/ })
    .click();
  await page.getByText("There are no recordings").waitFor();
  await show("/sandboxes/demo");
  await page.locator(".term .xterm").waitFor();
});

// Everything below /some/where goes to the daemon, as behind a proxy.
const prefixed = () =>
  new Promise((done) => {
    const [host, port] = daemon.address.split(":");
    const to = (r) => ({
      host,
      port,
      method: r.method,
      path: r.url.replace(/^\/some\/where/, ""),
      headers: r.headers,
    });
    const proxy = createServer((r, w) => {
      if (!r.url.startsWith("/some/where/")) return w.writeHead(404).end();
      const out = request(to(r), (a) => {
        w.writeHead(a.statusCode, a.headers);
        a.pipe(w);
      });
      r.pipe(out);
    });
    proxy.on("upgrade", (r, socket) => {
      const out = request(to(r));
      out.on("upgrade", (a, inside) => {
        const lines = Object.entries(a.headers).map(([k, v]) => `${k}: ${v}`);
        socket.write(
          ["HTTP/1.1 101 Switching Protocols", ...lines, "", ""].join("\r\n"),
        );
        inside.pipe(socket).pipe(inside);
        inside.on("error", () => socket.destroy());
        socket.on("error", () => inside.destroy());
      });
      out.end();
    });
    proxy.listen(0, "127.0.0.1", () => done(proxy));
  });

test("a link shows a terminal without a key, and lets type only if it may", async (t) => {
  const proxy = await prefixed();
  t.after(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  const found = [];
  for (const [name, size, colorScheme, flags] of [
    ["light", { width: 1280, height: 800 }, "light", []],
    ["dark", { width: 1280, height: 800 }, "dark", ["--view"]],
    ["narrow", { width: 400, height: 800 }, "light", []],
    ["narrow-dark", { width: 400, height: 800 }, "dark", ["--view"]],
  ]) {
    if (name === "narrow")
      flags.push(
        "--base",
        `http://127.0.0.1:${proxy.address().port}/some/where`,
      );
    const context = await chrome.newContext({ viewport: size, colorScheme });
    const guest = await context.newPage();
    guest.on("pageerror", (e) => faults.push(String(e)));
    const link = daemon.run(
      "terminal",
      "--link",
      "--no-browser",
      ...flags,
      "demo",
    );
    await guest.goto(link);
    const rows = guest.locator(".term .xterm-rows");
    const says = (text) => rows.getByText(text).first().waitFor();
    await guest.getByText("You watch.").waitFor();
    await type(`echo for-guests-${name}-$((40+2))`, `for-guests-${name}-42`);
    await says(`for-guests-${name}-42`);
    await guest.locator(".xterm-helper-textarea").focus();
    await guest.keyboard.type("echo not-typed\n");
    const control = guest.getByRole("button", { name: "Take control" });
    if (flags.includes("--view")) {
      assert.equal(await guest.getByRole("button").count(), 0);
    } else {
      await control.click();
      await guest.getByText("You are in control").waitFor();
      await guest.locator(".xterm-helper-textarea").focus();
      await guest.keyboard.type(`echo guest-${name}-$((20+1))\n`);
      await says(`guest-${name}-21`);
    }
    assert.doesNotMatch(await rows.textContent(), /not-typed/);
    assert.equal(await guest.locator("nav, a").count(), 0);
    assert.doesNotMatch(guest.url(), /\.[A-Z0-9]{20,}$/, "the code stays");
    found.push(...(await look(guest, `linked-${name}`)));
    await guest.reload();
    await says(`for-guests-${name}-42`);
    const second = await context.newPage();
    await second.goto(link);
    await second.getByRole("alert").getByText("used already").waitFor();
    assert.equal((await context.cookies()).length, 0, "a link signs in");
    daemon.run("stream", "rm", "--all", "demo");
    await guest.getByRole("alert").getByText("was revoked").waitFor();
    // Nothing is left to control, and no words say that it was.
    if (flags.includes("--view"))
      assert.equal(await guest.getByRole("button").count(), 0);
    else await isOff(guest, "Take control", /was revoked/);
    assert.equal(await guest.getByText("in control").count(), 0);
    await guest.screenshot({ path: join(shots, `linked-ended-${name}.png`) });
    await context.close();
    // The page's own stream was revoked, too.
    await page.getByRole("alert").getByText("was revoked").waitFor();
    await isOff(page, "Only watch", /was revoked/);
    await shot(`revoked-${name}`);
    await button("Open it again").click();
    await page
      .getByRole("button", { name: "Only watch", exact: true, disabled: false })
      .waitFor();
    await page.getByRole("alert").waitFor({ state: "detached" });
    await page.locator(".term .xterm").waitFor();
    // What is typed before the terminal is connected is lost.
    for (let tries = 1; ; tries++) {
      try {
        await type(`echo again-$((40+1))-${name}`, `again-41-${name}`, 5_000);
        break;
      } catch (e) {
        if (tries === 6) throw e;
      }
    }
  }
  assert.deepEqual(found, []);
});

test("a link says that its key has ended, and gives no control", async () => {
  const args = ["key", "create", "--json", "--allow", "read,exec", "guest"];
  const key = JSON.parse(daemon.run(...args));
  const open = async () => {
    const r = await fetch(
      `http://${daemon.address}/v1/sandboxes/demo/streams`,
      {
        method: "POST",
        headers: {
          authorization: `Bearer ${key.token}`,
          "content-type": "application/json",
        },
        body: JSON.stringify({
          kind: "terminal",
          mode: "control",
          ttl: 600,
          link: true,
        }),
      },
    );
    assert.equal(r.status, 201);
    const { id, code } = await r.json();
    return `${base()}#view=${id}.${code}`;
  };
  const context = await chrome.newContext();
  const guest = await context.newPage();
  const unopened = await open();
  await guest.goto(await open());
  await guest.locator(".term .xterm").waitFor();
  daemon.run("key", "revoke", key.id);
  await guest.getByRole("alert").getByText("has ended").waitFor();
  await isOff(guest, "Take control", /The key .* has ended/);
  await guest.screenshot({ path: join(shots, "linked-key-ended.png") });
  const late = await context.newPage();
  await late.goto(unopened);
  await late.getByRole("alert").getByText("has ended").waitFor();
  assert.equal(await late.getByRole("button").count(), 0);
  await context.close();
});

test("a link to a session goes on in its next sandbox", async () => {
  daemon.run("session", "create", "--image", "host", "agent");
  const args = ["session", "terminal", "--link", "--no-browser", "agent"];
  const context = await chrome.newContext();
  const guest = await context.newPage();
  guest.on("pageerror", (e) => faults.push(String(e)));
  await guest.goto(daemon.run(...args));
  const rows = guest.locator(".term .xterm-rows");
  const answers = async (text, answer) => {
    await guest.locator(".xterm-helper-textarea").focus();
    await guest.keyboard.type(text + "\n");
    await rows.getByText(answer).first().waitFor();
  };
  await guest.getByRole("button", { name: "Take control" }).click();
  await guest.getByText("You are in control").waitFor();
  await answers("echo before-$((40+2))", "before-42");
  const { lease } = [JSON.parse(daemon.run("session", "inspect", "agent"))]
    .flat()
    .at(0);
  daemon.run("rm", "--force", lease.sandbox);
  const lost = guest.getByText("The connection is lost");
  await lost.waitFor();
  daemon.run("session", "exec", "agent", "--", "true"); // makes the next one
  await lost.waitFor({ state: "detached" });
  assert.doesNotMatch(await rows.textContent(), /before-42/);
  await answers("echo after-$((40+3))", "after-43");
  await guest.reload();
  await rows.getByText("after-43").first().waitFor();
  daemon.run("session", "rm", "--force", "agent");
  await guest
    .getByRole("alert")
    .getByText("session of the link has ended")
    .waitFor();
  await isOff(guest, "Take control", /has ended/);
  await context.close();
});

test("a file is edited, and its changes are shown", async () => {
  daemon.run(
    "exec",
    "demo",
    "--",
    "sh",
    "-c",
    "mkdir -p /work-files && printf 'print(1)\\n' > /work-files/main.py",
  );
  await page.getByRole("tab", { name: "Files" }).click();
  await button("work-files/").click();
  await button("main.py").click();
  await page.locator(".cm-content").click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("print(2)");
  await button("Show changes").click();
  await page
    .locator("dialog .cm-insertedLine, dialog .cm-changedLine")
    .first()
    .waitFor();
  await shot("diff");
  await page.locator("dialog").getByRole("button", { name: "Save" }).click();
  await page.getByRole("status").getByText("is saved").waitFor();
  assert.match(
    daemon.run("exec", "demo", "--", "cat", "/work-files/main.py"),
    /print\(1\)\nprint\(2\)/,
  );
  await shot("files");
});

test("a port is opened in a tab", async () => {
  daemon.run(
    "exec",
    "-d",
    "demo",
    "--",
    "python3",
    "-m",
    "http.server",
    "8000",
    "--directory",
    "/work-files",
  );
  await page.getByRole("tab", { name: "Ports" }).click();
  await page.waitForTimeout(1500); // until it listens
  await button("Look again").click();
  const opened = page.context().waitForEvent("page");
  await button("Open port 8000").click();
  const preview = await opened;
  await preview.getByText("main.py").waitFor();
  assert.doesNotMatch(preview.url(), /atollport_/);
  await preview.close();
  await shot("ports");
});

test("a refused host is shown and can be allowed", async () => {
  daemon.run(
    "exec",
    "demo",
    "--",
    "sh",
    "-c",
    "curl -sS -m 5 http://refused.example/ || true",
  );
  await page.getByRole("tab", { name: "Network" }).click();
  const allow = button("Allow this host: refused.example");
  await allow.waitFor();
  await shot("network");
  await allow.click();
  await button("Deny refused.example").waitFor();
  assert.match(
    JSON.stringify(JSON.parse(await api("v1/sandboxes/demo/network"))),
    /refused\.example/,
  );
});

test("a request that was refused succeeds when its host is allowed, also in a profile", async (t) => {
  const server = createServer((_, w) => w.end("reached"));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = `served.test:${server.address().port}`;
  const asks = (name) =>
    daemon.beside(
      ...["exec", name, "--", "sh", "-c"],
      `curl -s -m 20 http://${address}/ || true`,
    );
  const narrow = join(daemon.dir, "narrow.yaml");
  writeFileSync(narrow, "default: deny\n");
  daemon.run("profile", "create", "narrow", "-f", narrow);
  daemon.run("create", "--name", "in-profile", "--profile", "narrow");
  for (const name of ["demo", "in-profile"]) {
    // First the name is refused, then its port, because a rule without one is
    // about 80 and 443.
    for (const host of ["served.test", address]) {
      assert.doesNotMatch(await asks(name), /^reached/);
      await show(`/sandboxes/${name}/network`);
      await button(`Allow this host: ${host}`).click();
      const allowed =
        name === "demo"
          ? `${host} is allowed`
          : `The profile narrow allows ${host}, for all that use it`;
      await page
        .getByRole("status")
        .getByText(allowed, { exact: true })
        .waitFor();
      await button(`Allow this host: ${host}`).waitFor({ state: "detached" });
    }
    assert.match(await asks(name), /^reached/);
  }
  await show("/egress/narrow");
  const tried = page.getByRole("textbox", { name: "URL" });
  await tried.fill(`http://${address}/`);
  await button("Test").click();
  await page.getByText("It passes").waitFor();
  await tried.fill("https://elsewhere.example/");
  await button("Test").click();
  await page.getByText("It is refused").waitFor();
  await tried.fill("ftp://elsewhere.example/");
  await button("Test").click();
  await page.getByRole("alert").waitFor();
  await shot("egress-test");
  daemon.run("rm", "--force", "in-profile");
  await show("/sandboxes/demo");
});

test("making a sandbox can be cancelled", async (t) => {
  const connections = [];
  const registry = createListener((c) => {
    c.on("error", () => {});
    connections.push(c);
  }); // never answers
  await new Promise((done) => registry.listen(0, "127.0.0.1", done));
  t.after(() => {
    for (const c of connections) c.destroy();
    registry.close();
  });
  await show("/sandboxes");
  await button("New sandbox").click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name").fill("never");
  await form
    .getByLabel("Image")
    .fill(`127.0.0.1:${registry.address().port}/slow:1`);
  await form.getByRole("button", { name: "Create" }).click();
  await form.getByRole("status").getByText("It is being made").waitFor();
  await shot("create-making");
  await form.getByRole("button", { name: "Cancel" }).click();
  await form.getByRole("status").getByText("It was cancelled").waitFor();
  assert.equal(await form.getByLabel("Name").inputValue(), "never");
  const failed = () =>
    /"type":"failed","op":"sandbox.create".*"never".*"canceled"/.test(
      daemon.run("events", "--json"),
    );
  for (let i = 0; i < 100 && !failed(); i++)
    await new Promise((done) => setTimeout(done, 100));
  assert.ok(failed(), "the daemon goes on making it");
  assert.doesNotMatch(daemon.run("ls", "--all"), /never/);
  await form.getByRole("button", { name: "Cancel" }).click();
  await form.waitFor({ state: "detached" });
  await show("/sandboxes/demo");
});

test("a template is built, and its log stays", async () => {
  await show("/templates");
  await button("Build a template").click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name").fill("tools");
  const file = form.getByLabel("Dockerfile");
  await file.fill("FROM host\nRUN exit 3\n");
  await form.getByRole("button", { name: "Build", exact: true }).click();
  await form.getByRole("status").getByText("failed").waitFor();
  await shot("template-failed");
  await file.fill("FROM host\nRUN echo built-$((40+2)) && touch /made\n");
  await form.getByRole("button", { name: "Build again" }).click();
  await form.getByRole("status").getByText("is built").waitFor();
  await form.getByRole("log").getByText("built-42").waitFor();
  await shot("template-built");
  await form.getByRole("button", { name: "Done" }).click();
  await page.getByText("template:tools:latest").waitFor();
  await show("/sandboxes/demo");
});

test("keys of pages are marked; tenants and the audit log are shown", async () => {
  daemon.run("tenant", "create", "neighbours");
  daemon.run("key", "create", "--allow", "read", "looker");
  await show("/access");
  const keys = page.getByRole("table", { name: "API keys" });
  await keys.getByText("console page").first().waitFor();
  assert.equal(await keys.getByText(/\bpage\b.*,|, page/).count(), 0);
  await page
    .getByRole("table", { name: "Tenants" })
    .getByText("neighbours")
    .waitFor();
  const log = page.getByRole("table", { name: "Audit log" });
  await page.getByLabel("Search the audit log").fill("key.create");
  await log.getByText("key.create").first().waitFor();
  const saved = page.waitForEvent("download");
  await button("Download").click();
  const text = readFileSync(await (await saved).path(), "utf8");
  assert.match(text, /key\.create/);
  await button("Verify").click();
  await page.getByText("complete and unchanged").waitFor();
  assert.match(daemon.run("key", "ls"), /admin \(console page\)/);
  await shot("access-all");
  await show("/sandboxes/demo");
});

/** Calls the API as the signed-in page does. */
const api = (path) =>
  page.evaluate(
    async (p) =>
      (
        await fetch("../" + p, {
          headers: { "Atoll-Console": localStorage.getItem("atoll.half") },
        })
      ).text(),
    path,
  );

test("a snapshot and a fork are in the tree", async () => {
  await button("Snapshot").click();
  await page.getByRole("status").getByText("is made").waitFor();
  await button("Fork").click();
  await page.getByRole("heading", { name: /^sb-/ }).waitFor();
  await show("/snapshots");
  await page.locator(".tree .node").first().waitFor();
  await shot("snapshots");
});

test("the page recovers when the daemon was killed", async () => {
  await show("/sandboxes");
  await page.getByRole("link", { name: "demo", exact: true }).waitFor();
  await daemon.end();
  await page
    .getByRole("alert")
    .getByText("The connection to the daemon is lost")
    .waitFor();
  await shot("lost");
  await daemon.start();
  await page
    .getByRole("alert")
    .getByText("The connection to the daemon is lost")
    .waitFor({ state: "detached" });
  daemon.run("create", "--name", "after-the-crash");
  await page
    .getByRole("link", { name: "after-the-crash", exact: true })
    .waitFor();
});

test("a key that may only read sees reasons", async () => {
  const token = daemon.run("key", "create", "--allow", "read", "reader");
  const context = await chrome.newContext();
  const reader = await context.newPage();
  await reader.goto(base());
  await reader.getByLabel("API key").fill(token);
  await reader.getByRole("button", { name: "Sign in" }).click();
  await reader.getByRole("heading", { name: "Overview" }).waitFor();
  const make = reader.getByRole("button", { name: "New sandbox" });
  assert.equal(await make.getAttribute("aria-disabled"), "true");
  assert.match(await make.getAttribute("title"), /does not allow “write”/);
  await context.close();
});

test("another tenant sees none of it", async () => {
  const token = daemon.run(
    "key",
    "create",
    "--tenant",
    "other",
    "--allow",
    "read,exec,write",
    "other",
  );
  const context = await chrome.newContext();
  const other = await context.newPage();
  await other.goto(base());
  await other.getByLabel("API key").fill(token);
  await other.getByRole("button", { name: "Sign in" }).click();
  await other.goto(base() + "#/sandboxes");
  await other.getByText("There are no sandboxes").waitFor();
  await other.goto(base() + "#/sandboxes/demo");
  await other.getByRole("alert").waitFor();
  await context.close();
});

// A page on another port of the same host gets the console's cookie, because
// browsers do not keep cookies apart by port. It must be of no use there.
test("attack: a page that a sandbox serves cannot use the cookie", async (t) => {
  let stolen = "";
  const existed = daemon.run("ls", "--quiet");
  const attacker = createServer((request, response) => {
    stolen = request.headers.cookie ?? stolen;
    response.setHeader("Content-Type", "text/html");
    response.end("<title>attack</title>");
  });
  await new Promise((done) => attacker.listen(0, "127.0.0.1", done));
  t.after(() => {
    attacker.closeAllConnections();
    attacker.close();
  });
  const evil = await page.context().newPage();
  await evil.goto(`http://127.0.0.1:${attacker.address().port}/`);
  assert.match(
    stolen,
    /atoll_console=/,
    "the browser no longer sends it; the test has lost its reason",
  );
  const target = `http://${daemon.address}`;
  for (const [what, headers] of [
    ["the cookie alone", { cookie: stolen }],
    [
      "with a guessed half",
      { cookie: stolen, "atoll-console": "A".repeat(43) },
    ],
    ["as a key", { authorization: "Bearer " + stolen.split("=")[1] }],
  ]) {
    const r = await fetch(target + "/v1/sandboxes", { headers });
    assert.equal(r.status, 401, what);
  }
  const seen = await evil.evaluate(async (t) => {
    const tries = {};
    tries.read = await fetch(t + "/v1/sandboxes", {
      credentials: "include",
    }).then(
      (r) => r.status,
      () => "refused",
    );
    tries.write = await fetch(t + "/v1/sandboxes", {
      method: "POST",
      mode: "no-cors",
      credentials: "include",
      body: "{}",
    }).then(
      (r) => r.type,
      () => "refused",
    );
    tries.socket = await new Promise((done) => {
      const ws = new WebSocket(
        t.replace("http", "ws") + "/v1/sandboxes/demo/exec",
        ["atoll"],
      );
      ws.onopen = () => done("open");
      ws.onerror = () => done("refused");
    });
    const frame = document.createElement("iframe");
    frame.src = t + "/console/";
    document.body.append(frame);
    await new Promise((done) => setTimeout(done, 500));
    try {
      tries.frame = frame.contentDocument?.title ?? "hidden";
    } catch {
      tries.frame = "hidden";
    }
    tries.storage = localStorage.getItem("atoll.half") ?? "none";
    return tries;
  }, target);
  assert.notEqual(seen.read, 200);
  assert.equal(seen.socket, "refused");
  assert.equal(seen.storage, "none");
  assert.notEqual(seen.frame, "Atoll");
  assert.equal(
    daemon.run("ls", "--quiet"),
    existed,
    "the attack made or removed a sandbox",
  );
  await evil.close();
});

const pages = [
  "",
  "sandboxes",
  "sessions",
  "snapshots",
  "workspaces",
  "recordings",
  "templates",
  "egress",
  "secrets",
  "providers",
  "nodes",
  "usage",
  "activity",
  "access",
];

test("every page is accessible, in light, dark and narrow", async () => {
  daemon.run("workspace", "create", "notes");
  daemon.run("session", "create", "--image", "host", "work");
  const id = JSON.parse(daemon.run("inspect", "demo"))[0]?.id ?? "demo";
  const record = JSON.parse(daemon.run("record", "start", "--json", "demo")).id;
  daemon.run("record", "stop", record);
  const found = [];
  for (const [name, size, theme] of looks) {
    await page.setViewportSize(size);
    await page.evaluate((t) => localStorage.setItem("atoll.theme", t), theme);
    for (const p of [
      ...pages,
      `sandboxes/${id}/terminal`,
      `sandboxes/${id}/files`,
      `sandboxes/${id}/network`,
      `sandboxes/${id}/limits`,
      `recordings/${record}`,
    ]) {
      await show("/" + p);
      await page.reload();
      await page.locator("main h1").waitFor();
      await page.waitForTimeout(700); // for its data
      const what =
        p.replace(id, "one").replace(record, "one").replaceAll("/", "-") ||
        "overview";
      found.push(...(await look(page, `${what}-${name}`)));
    }
  }
  assert.deepEqual(found, []);
});

test("nothing failed in the page", () => assert.deepEqual(faults, []));
