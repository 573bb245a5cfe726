import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { fromProblem } from '../src/errors.js'
import * as atoll from '../src/index.js'
import { run, stateDirectory } from './daemon.js'

test('connect starts a daemon, once', async () => {
  const state = stateDirectory()
  try {
    process.env.ATOLL_NO_DAEMON = '1'
    await assert.rejects(atoll.connect(), atoll.UnavailableError)
    delete process.env.ATOLL_NO_DAEMON
    const clients = await Promise.all([atoll.connect(), atoll.connect()])
    await using s = await clients[0].create()
    assert.equal((await s.run(['echo', 'hi'])).stdout.toString(), 'hi\n')
    for (const c of clients.slice(1)) await c.close()
  } finally {
    run(state, ['rm', '--all', '-f'])
    run(state, ['down'])
    rmSync(state, { recursive: true, force: true })
  }
})

test('no program', async () => {
  const bin = process.env.ATOLL_BIN
  process.env.ATOLL_STATE_DIR = '/nonexistent'
  process.env.ATOLL_BIN = '/nonexistent/atoll'
  await assert.rejects(atoll.connect(), { code: 'unavailable', hint: 'install it, or set ATOLL_HOST' })
  process.env.ATOLL_BIN = bin
})

test('addresses', () => {
  for (const host of ['ftp://x', 'http://u:p@x', 'http://x/path', 'http://x?q', 'x', 'unix://host/x']) {
    assert.throws(() => new atoll.Client({ host }), atoll.InvalidError, host)
  }
})

test('what is not Atoll', async () => {
  const server = createServer((_request, answer) => answer.writeHead(500).end('<html>')).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  await using c = new atoll.Client({ host: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })
  await assert.rejects(c.get('x'), atoll.UnavailableError)
  await assert.rejects(c.ping(), atoll.UnavailableError)
  server.close()
})

test('every code of the documentation has a class', () => {
  const page = readFileSync(new URL('../../../../docs/reference/errors.md', import.meta.url), 'utf8')
  const codes = [...page.matchAll(/^\| `([a-z_]+)` \|/gm)].map((m) => m[1] ?? '')
  assert.ok(codes.length > 10)
  for (const code of codes) {
    const e = fromProblem({ code, title: 't', detail: 'd', hint: 'h', subject: 's', rule: 'r' }, '7')
    assert.equal(e?.constructor, atoll.errorClasses[code], code)
    assert.deepEqual([e?.code, e?.message, e?.retryAfter, e?.rule], [code, 's: d (h)', 7, 'r'])
  }
  assert.equal(fromProblem({ code: 'new_one', title: 't' })?.constructor, atoll.AtollError)
})

test('the models are those of the OpenAPI document', () => {
  const dir = mkdtempSync(path.join(tmpdir(), 'atoll-models-'))
  const root = new URL('../../', import.meta.url)
  execFileSync(process.execPath, ['scripts/generate.mjs', path.join(dir, 'models.ts')], { cwd: root })
  assert.ok(
    readFileSync(path.join(dir, 'models.ts'), 'utf8') === readFileSync(new URL('src/models.ts', root), 'utf8'),
    'run: make js-generate',
  )
  rmSync(dir, { recursive: true })
})
