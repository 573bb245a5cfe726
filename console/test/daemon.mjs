// A real daemon and a real browser for the tests.
import { execFile, spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

/** The program under test, a copy that the user nobody can read. */
const atoll = process.env.ATOLL_BIN;
if (!atoll)
  throw new Error("set ATOLL_BIN to the program, as make console-test does");

/** Where screenshots are kept. */
export const shots = process.env.SHOTS ?? join(tmpdir(), "atoll-console");
mkdirSync(shots, { recursive: true });

export class Daemon {
  /** A daemon with a state directory of its own, or with one that exists. */
  constructor(state) {
    this.dir = mkdtempSync(join(tmpdir(), "atoll-console-test-"));
    this.env = {
      ...process.env,
      ATOLL_STATE_DIR: state ?? join(this.dir, "state"),
      ATOLL_NO_DAEMON: "1",
    };
    for (const name of ["ATOLL_HOST", "ATOLL_KEY", "ATOLL_PROVIDER", "DISPLAY"])
      delete this.env[name];
  }

  async start(...flags) {
    this.process = spawn(atoll, ["up", "--pool", "0", ...flags], {
      env: this.env,
      stdio: "ignore",
    });
    for (let i = 0; i < 300; i++) {
      // Without a daemon, some commands work too.
      const r = spawnSync(atoll, ["key", "ls"], { env: this.env });
      if (r.status === 0) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error("the daemon does not answer");
  }

  /** Ends the daemon, by default as a crash does. */
  async end(signal = "SIGKILL") {
    const { exitCode, signalCode } = this.process;
    if (exitCode !== null || signalCode !== null) return; // it has ended
    const ended = new Promise((done) => this.process.once("exit", done));
    this.process.kill(signal);
    await ended;
  }

  /** Runs a command of the program and returns its output. */
  run(...args) {
    const r = spawnSync(atoll, args, { env: this.env, encoding: "utf8" });
    if (r.status !== 0) throw new Error(`atoll ${args.join(" ")}: ${r.stderr}`);
    return r.stdout.trim();
  }

  /** Like run, for a command that needs a server of the test meanwhile. */
  async beside(...args) {
    const { stdout } = await promisify(execFile)(atoll, args, {
      env: this.env,
    });
    return stdout.trim();
  }

  /** A link that signs in. */
  link() {
    return this.run("console", "--no-browser", "--listen", this.address);
  }

  async close() {
    try {
      this.run("rm", "--force", "--all");
    } catch {
      // there are none
    }
    await this.end("SIGTERM");
    rmSync(this.dir, { recursive: true, force: true });
  }
}

export const browser = () =>
  chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });

export const freePort = () =>
  new Promise((done) => {
    const l = createServer().listen(0, "127.0.0.1", () => {
      const { port } = l.address();
      l.close(() => done(port));
    });
  });

/** How each page is looked at: its name, size and colours. */
export const looks = [
  ["light", { width: 1280, height: 800 }, "light"],
  ["dark", { width: 1280, height: 800 }, "dark"],
  ["narrow", { width: 400, height: 800 }, "light"],
];

const axe = readFileSync(
  createRequire(import.meta.url).resolve("axe-core/axe.min.js"),
  "utf8",
);

/** Keeps a screenshot, and returns what is wrong with the page: what axe finds
 * serious, and a width that is more than that of the screen. */
export async function look(page, name) {
  // A dialog is drawn a frame after the size of the screen has changed.
  await page.evaluate(
    () =>
      new Promise((done) =>
        requestAnimationFrame(() => requestAnimationFrame(done)),
      ),
  );
  await page.screenshot({ path: join(shots, name + ".png") });
  const found = [];
  const wide = await page.evaluate(
    () => document.documentElement.scrollWidth - innerWidth,
  );
  if (wide > 0) found.push(`${name}: ${wide} pixels wider than the screen`);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    window.axe.run(document, { resultTypes: ["violations"] }),
  );
  for (const v of violations)
    if (v.impact === "serious" || v.impact === "critical")
      found.push(
        `${name}: ${v.id}: ${v.nodes
          .map((n) => n.html)
          .join(" ")
          .slice(0, 300)}`,
      );
  return found;
}
