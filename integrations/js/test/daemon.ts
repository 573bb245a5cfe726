// A real daemon for the tests: the program $ATOLL_BIN, with a state directory of its own.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'

export const program = process.env.ATOLL_BIN ?? ''
if (!program) throw new Error('set ATOLL_BIN to the program under test')

export class Daemon {
  private constructor(
    readonly state: string,
    readonly host: string,
    readonly key: string,
    /** End the daemon. The tests must have left nothing behind. */
    readonly stop: () => Promise<void>,
  ) {}

  cli(...args: string[]): string {
    return run(this.state, args)
  }

  get socket(): string {
    return `unix://${this.state}/atoll.sock`
  }

  /** Start a daemon, which is the local one of this process until it is stopped. */
  static async start(): Promise<Daemon> {
    const state = stateDirectory()
    const child = spawn(
      program,
      ['up', '--state-dir', state, '--listen', '127.0.0.1:0', '--plain', '--session-grace', '1s', '--pool', '0'],
      {
        stdio: ['ignore', 'ignore', 'pipe'],
      },
    )
    const ended = new Promise((resolve) => child.once('exit', resolve))
    const stop = async () => {
      const left = run(state, ['ls', '-q']).split('\n').filter(Boolean)
      run(state, ['rm', '--all', '-f'])
      child.kill('SIGTERM')
      await ended
      rmSync(state, { recursive: true, force: true })
      assert.deepEqual(left, [], 'the tests left sandboxes')
    }
    for await (const line of createInterface({ input: child.stderr })) {
      const address = /listening on (127\.\S+)/.exec(line)?.[1]
      if (address) return new Daemon(state, `http://${address}`, run(state, ['key', 'create', 'tests']).trim(), stop)
    }
    throw new Error('the daemon did not start')
  }
}

/** A state directory that is the one of this process. */
export function stateDirectory(): string {
  const state = mkdtempSync(path.join(tmpdir(), 'atoll-js-'))
  chmodSync(state, 0o755) // kernels run as nobody
  process.env.ATOLL_STATE_DIR = state
  for (const name of ['ATOLL_HOST', 'ATOLL_KEY', 'ATOLL_NO_DAEMON']) delete process.env[name]
  return state
}

export function run(state: string, args: string[]): string {
  return execFileSync(program, [...args, '--state-dir', state], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
}
