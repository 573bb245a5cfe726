// A real daemon for the tests: the program $ATOLL_BIN, with a state directory of its own.
import { execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'

const program = process.env.ATOLL_BIN ?? ''
if (!program) throw new Error('set ATOLL_BIN to the program under test')

const state = mkdtempSync(path.join(tmpdir(), 'atoll-agents-'))
chmodSync(state, 0o755) // kernels run as nobody
process.env.ATOLL_STATE_DIR = state
for (const name of ['ATOLL_HOST', 'ATOLL_KEY', 'ATOLL_NO_DAEMON']) delete process.env[name]

export function cli(...args: string[]): string {
  return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
}

cli('up', '--detach', '--pool', '0', '--session-grace', '1s')

/** End the daemon, and return the sandboxes that the tests left behind. */
export function end(): string[] {
  const left = [
    ...(JSON.parse(cli('session', 'ls', '--json')) as { name: string }[]).map((s) => s.name),
    ...cli('ls', '-q').split('\n').filter(Boolean),
  ]
  cli('rm', '--all', '-f')
  cli('down')
  rmSync(state, { recursive: true, force: true })
  return left
}
