// Runs the programs with the daemon of $ATOLL_BIN, and checks that the guide shows them.
import assert from 'node:assert/strict'
import { execFile, execFileSync } from 'node:child_process'
import { chmodSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'

const atoll = process.env.ATOLL_BIN ?? ''
if (!atoll) throw new Error('set ATOLL_BIN to the program under test')

const state = mkdtempSync(path.join(tmpdir(), 'atoll-frameworks-'))
chmodSync(state, 0o755) // kernels run as nobody
const env: NodeJS.ProcessEnv = { ...process.env, ATOLL_STATE_DIR: state, PATH: `${path.dirname(atoll)}:${process.env.PATH}` }
for (const name of ['ATOLL_HOST', 'ATOLL_KEY', 'ATOLL_NO_DAEMON']) delete env[name]

function cli(...args: string[]): string {
  return execFileSync(atoll, args, { env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
}

cli('up', '--detach', '--pool', '0', '--e2b=127.0.0.1:0')
for (const [, name, value] of cli('e2b', 'env', '--format', 'dotenv').matchAll(/^(\w+)=["']?([^"'\n]*)/gm)) env[name ?? ''] = value
after(() => {
  cli('rm', '--all', '-f')
  cli('down')
  rmSync(state, { recursive: true, force: true })
})

const here = path.dirname(path.dirname(new URL(import.meta.url).pathname))

/** The programs, and whether the page shows them. */
const programs: Record<string, boolean> = { 'ai-sdk': true, 'ai-sdk-mcp': false, mastra: true }
const page = readFileSync(path.join(here, '../../../docs/guide/frameworks.md'), 'utf8')

for (const [program, shown] of Object.entries(programs)) {
  test(program, async () => {
    if (shown) {
      const source = readFileSync(path.join(here, `${program}.ts`), 'utf8')
      assert.ok(page.includes('```ts\n' + source + '```'), `the page does not show ${program}.ts as it is`)
    }
    const options = { env: { ...env, SCRIPT: program }, timeout: 180_000 }
    const { stdout } = await promisify(execFile)(process.execPath, [path.join(here, `.build/${program}.js`)], options)
    const said = JSON.parse(stdout.slice(stdout.indexOf('{'))) as Record<string, string>
    assert.match(said.run ?? '', /42\\+n/)
    assert.match(said.kernel ?? '', /gVisor/)
    assert.match(said.fail ?? '', /no\\+n/)
    assert.match(said.fail ?? '', /code[^0-9]{1,8}7\b/i)
    assert.match(said.slow ?? '', /time(d|_|-)? ?out/i)
    assert.match(said.after ?? '', /alive\\+nadd\.py\\+n0\\+n/, 'the sandbox goes on, and what took too long is gone')
    assert.equal(cli('ls', '-q'), '', 'a sandbox is left')
    assert.deepEqual(JSON.parse(cli('session', 'ls', '--json')), [])
  })
}
