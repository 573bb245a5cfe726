// A real daemon and a real browser for the tests.
import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
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

  async start() {
    this.process = spawn(atoll, ["up", "--pool", "0"], {
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
