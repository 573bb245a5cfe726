import assert from 'node:assert/strict'
import { test } from 'node:test'

import { errorClasses, type Sandbox } from '@atoll/sdk'
import { Manifest, SandboxError } from '@openai/agents-core/sandbox'

import { AtollSandboxClient, type AtollSandboxSession } from '../src/index.js'
import { cli, end } from './daemon.js'

test.after(() => assert.deepEqual(end(), [], 'the tests left sandboxes'))

type Calls = Record<'send' | 'websocket', (this: unknown, ...args: unknown[]) => Promise<unknown>>

/** Makes one of the clients' calls fail: before it reaches the daemon, or after the daemon has carried it out, by losing the response. */
class Fault {
  calls = 0
  failed = 0
  at = 0
  lost = false
  code = 'unavailable'

  constructor(sandbox: Sandbox) {
    const calls = Object.getPrototypeOf((sandbox as unknown as Record<string, object>).conn) as Calls
    for (const name of ['send', 'websocket'] as const) {
      const real = calls[name]
      const through = (self: unknown, args: unknown[]) => this.#call(() => real.apply(self, args))
      calls[name] = function (...args) {
        return through(this, args)
      }
    }
  }

  async #call(real: () => Promise<unknown>): Promise<unknown> {
    if (++this.calls !== this.at) return real()
    this.failed++
    if (this.lost) {
      const answer = (await real()) as { body?: { dump: () => Promise<void> }; terminate?: () => void }
      await answer.body?.dump()
      answer.terminate?.()
    }
    const Make = errorClasses[this.code]
    assert.ok(Make)
    throw new Make('injected')
  }
}

const manifest = () => new Manifest({ entries: { 'notes.txt': { type: 'file', content: 'x' } } })

async function scenario(client: AtollSandboxClient) {
  let s: AtollSandboxSession | undefined
  try {
    s = await client.create(manifest(), { exposedPorts: [1], workspacePersistence: 'snapshot' })
    await s.running()
    await s.execCommand({ cmd: 'true' })
    await s.execCommand({ cmd: 'true', tty: true, yieldTimeMs: 2000 })
    await s.createEditor().createFile({ type: 'create_file', path: 'a', diff: '+1\n' })
    await s.readFile({ path: 'a' })
    await s.listDir({ path: '.' })
    await s.pathExists('a')
    await s.hydrateWorkspace(await s.persistWorkspace())
    await s.resolveExposedPort(1)
    const kept = await client.serializeSessionState(s.state, { willCloseAfterSerialize: true })
    await s.close()
    s = await client.resume(await client.deserializeSessionState(kept))
    await s.readFile({ path: 'a' })
  } finally {
    // Like the SDK, which continues when one of them fails.
    const failed: unknown[] = []
    for (const last of [() => s?.shutdown(), () => s?.delete(), () => s && client.delete(s.state)]) {
      try {
        await last()
      } catch (e) {
        failed.push(e)
      }
    }
    if (failed.length > 0) throw failed[0]
  }
}

for (const [code, lost] of [
  ['unavailable', false],
  ['exhausted', false],
  ['unavailable', true],
] as const) {
  test(`any call fails: ${code}${lost ? ', its answer is lost' : ''}`, async () => {
    const client = new AtollSandboxClient()
    const first = await client.create()
    await first.close()
    const fault = new Fault(first.session)
    fault.code = code
    fault.lost = lost
    let calls = 0
    const classes = new Set<string>()
    try {
      for (fault.at = 1; ; fault.at++) {
        fault.calls = fault.failed = 0
        try {
          await scenario(client)
        } catch (e) {
          assert.ok(e instanceof SandboxError, `call ${fault.at}: ${String(e)}`)
          classes.add(e.constructor.name)
        }
        calls = fault.calls
        if (!fault.failed) break
        assert.equal(cli('ls', '-q'), '', `call ${fault.at} left a sandbox`)
        assert.deepEqual(JSON.parse(cli('session', 'ls', '--json')), [], `call ${fault.at} left a session`)
        assert.equal(cli('snapshot', 'ls', '-q'), '', `call ${fault.at} left a snapshot`)
      }
    } finally {
      fault.at = 0
      await client.close()
    }
    assert.ok(calls > 25, String(calls))
    assert.ok(classes.size > 3, [...classes].join(' '))
  })
}
