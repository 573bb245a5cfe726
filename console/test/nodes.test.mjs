// The nodes of a daemon, in a real browser: two daemons stand for two machines.
import assert from "node:assert/strict";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browser, Daemon, freePort, look, looks } from "./daemon.mjs";

const daemon = new Daemon();
const nodes = { a: new Daemon(), b: new Daemon() };
let chrome;
let page;
const faults = []; // of the page, which would be defects

before(async () => {
  const flags = [];
  const keys = join(daemon.dir, "keys");
  let text = "";
  for (const [name, node] of Object.entries(nodes)) {
    node.address = `127.0.0.1:${await freePort()}`;
    await node.start("--plain", "--listen", node.address);
    flags.push("--node", `${name}=http://${node.address}`);
    text += `${name}=${node.run("key", "create", "control")}\n`;
  }
  writeFileSync(keys, text);
  chmodSync(keys, 0o600);
  daemon.address = `127.0.0.1:${await freePort()}`;
  await daemon.start(...flags, "--node-key-file", keys);
  chrome = await browser();
  const context = await chrome.newContext({ viewport: looks[0][1] });
  page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (e) => faults.push(String(e)));
  await page.goto(daemon.link());
  await page.getByRole("heading", { name: "Overview" }).waitFor();
});

after(async () => {
  await chrome?.close();
  await daemon.close();
  for (const node of Object.values(nodes)) await node.close();
});

const button = (name, on = page) =>
  on.getByRole("button", { name, exact: true });
const row = (name) => page.getByRole("row").filter({ hasText: name + "http" });
const dialog = () => page.getByRole("dialog");
const is = (name, state) =>
  row(name).getByText(state, { exact: true }).waitFor();
const reason = async (name) => {
  assert.equal(await button(name).getAttribute("aria-disabled"), "true");
  return button(name).getAttribute("title");
};
/** The node of a session, and the other. */
const where = () => {
  const { lease } = [JSON.parse(daemon.run("session", "inspect", "work"))]
    .flat()
    .at(0);
  const at = lease.provider.replace("node-", "");
  return [at, at === "a" ? "b" : "a"];
};

test("nodes are listed, and cordoned", async () => {
  await page.getByRole("link", { name: "Nodes", exact: true }).click();
  await is("a", "ready");
  await is("b", "ready");
  await page.getByRole("link", { name: "b", exact: true }).click();
  await button("Cordon b").click();
  await is("b", "cordoned");
  await button("Undo").click();
  await is("b", "ready");
  daemon.run("node", "cordon", "b"); // by somebody else
  await is("b", "cordoned");
  await button("Uncordon b").click();
  await is("b", "ready");
  assert.match(await reason("Drain b"), /has no sandboxes/);
});

test("a node is drained, and its session goes on", async () => {
  daemon.run("session", "create", "work");
  const write = "mkdir -p /workspace; echo kept > /workspace/note";
  daemon.run("session", "exec", "work", "--", "sh", "-c", write);
  daemon.run("create", "--name", "alone", "--provider", `node-${where()[0]}`);
  const [from, to] = where();
  await row(from).getByRole("cell", { name: "2", exact: true }).waitFor();
  await page.getByRole("link", { name: from, exact: true }).click();
  assert.match(await reason(`Remove ${from}`), /has 2 sandboxes/);
  await page.getByRole("heading", { name: "Its sandboxes: 2" }).waitFor();
  await page.getByRole("link", { name: "alone" }).waitFor();
  const found = [];
  for (const [name, size, theme] of looks) {
    await page.setViewportSize(size);
    await page.evaluate((t) => localStorage.setItem("atoll.theme", t), theme);
    await page.reload();
    await page.getByRole("link", { name: "alone" }).waitFor();
    found.push(...(await look(page, `nodes-two-${name}`)));
    await button(`Drain ${from}`).click();
    await button(`Drain ${from}`, dialog()).waitFor();
    found.push(...(await look(page, `nodes-drain-${name}`)));
    await button("Cancel", dialog()).click();
  }
  await page.setViewportSize(looks[0][1]);
  await button(`Drain ${from}`).click();
  await button(`Drain ${from}`, dialog()).click();
  await dialog().getByText(`moved to ${to}`).waitFor();
  await dialog().getByText("belongs to no session").waitFor();
  for (const [name, size, theme] of looks) {
    await page.setViewportSize(size);
    await page.evaluate((t) => {
      document.documentElement.dataset.theme = t;
    }, theme);
    await dialog().getByText(`moved to ${to}`).waitFor();
    found.push(...(await look(page, `nodes-drained-${name}`)));
  }
  await page.setViewportSize(looks[0][1]);
  await button("Done", dialog()).click();
  assert.equal(
    daemon.run("session", "exec", "work", "--", "cat", "/workspace/note"),
    "kept",
  );
  await is(from, "cordoned");
  assert.match(await reason(`Remove ${from}`), /has 1 sandbox\./);

  // What belongs to no session ends if that is wished.
  await button(`Drain ${from}`).click();
  await dialog().getByRole("checkbox").check();
  await button(`Drain ${from}`, dialog()).click();
  await dialog().getByText("ended").waitFor();
  await button("Done", dialog()).click();
  await button(`Remove ${from}`).click();
  await button(`Remove ${from}`, dialog()).click();
  await is(from, "removed");
  await button(`Take back ${from}`).click();
  await is(from, "ready");
  assert.deepEqual(found, []);
});

test("a node that died is given up", async () => {
  const [dead, other] = where();
  await nodes[dead].end();
  await is(dead, "unreachable");
  await page.getByRole("link", { name: dead, exact: true }).click();
  assert.match(await reason(`Drain ${dead}`), /does not answer/);
  await look(page, "nodes-unreachable");
  await button(`Give up ${dead}`).click();
  await dialog().getByText("1 sandbox").waitFor();
  await button(`Give up ${dead}`, dialog()).click();
  await is(dead, "removed");
  daemon.run("session", "exec", "work", "--", "true");
  assert.deepEqual(where(), [other, dead]);
});

test("a page that a key signed in sees no nodes", async () => {
  const token = daemon.run("key", "create", "--allow", "admin", "console");
  const context = await chrome.newContext();
  const other = await context.newPage();
  await other.goto(`http://${daemon.address}/console/`);
  await other.getByLabel("API key").fill(token);
  await button("Sign in", other).click();
  await other.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(await other.getByRole("link", { name: "Nodes" }).count(), 0);
  await other.goto(`http://${daemon.address}/console/#/nodes`);
  await other.getByRole("alert").getByText("Only the owner").waitFor();
  await context.close();
});

test("nothing failed in the page", () => assert.deepEqual(faults, []));
