import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'

import * as atoll from '../src/index.js'
import { Daemon } from './daemon.js'

const daemon = await Daemon.start()
const client = await atoll.connect()
const box = await client.create({ name: 'demo', labels: { team: 'js' } })
test.after(async () => {
  await box.destroy()
  await client.close()
  await daemon.stop()
})

test('run', async () => {
  const r = await box.run('cat; echo "$GREETING" >&2; pwd; exit 3', { input: 'in', env: { GREETING: 'hi' }, cwd: '/tmp' })
  assert.deepEqual([r.code, r.ok, r.stdout.toString(), r.stderr.toString()], [3, false, 'in/tmp\n', 'hi\n'])
  const bytes = Buffer.from([0, 255, 10, 13])
  assert.deepEqual((await box.run(['cat'], { input: bytes })).stdout, bytes)
  const late = await box.run(['sleep', '60'], { timeoutMs: 200 })
  assert.ok(late.timedOut && !late.ok)
  const long = await box.run('head -c 5000 /dev/zero', { outputLimit: 1000 })
  assert.deepEqual([long.truncated, long.stdout.length], [true, 1000])
  const args = ['', 'a\nb', '*', 'ü', "'"]
  assert.equal((await box.run(['printf', '%s|', ...args])).stdout.toString(), `${args.join('|')}|`)
  assert.equal((await box.run(['no-such-program'])).code, 127)
  await assert.rejects(box.run(['sleep', '60'], { signal: AbortSignal.timeout(100) }), { name: 'TimeoutError' })
})

test('live streams', async () => {
  const p = await box.exec('while read l; do echo "got $l"; done; echo end >&2', { stdin: true })
  await p.write('one\n')
  const first = await p[Symbol.asyncIterator]().next()
  assert.equal(first.value?.data.toString(), 'got one\n')
  const rest = await p.communicate('two\n')
  assert.deepEqual([rest.stdout.toString(), rest.stderr.toString()], ['got two\n', 'end\n'])
  assert.equal((await p.wait()).code, 0)
  await assert.rejects(p.write('more'), atoll.ConflictError)
  await p.close()
})

test('much in both directions', async () => {
  const big = Buffer.alloc(5 << 20, 'abcdefg')
  const p = await box.exec(['cat'], { stdin: true })
  const { stdout } = await p.communicate(big)
  assert.ok(stdout.equals(big), `got ${stdout.length} bytes`)
  assert.equal((await p.wait()).code, 0)
})

test('signals, and closing kills', async () => {
  const p = await box.exec(['sleep', '60'])
  await p.signal(15)
  assert.deepEqual((await p.wait()).signal, 15)
  const q = await box.exec('sleep 61')
  await q.close()
  const deadline = Date.now() + 10_000
  while ((await box.processes()).some((it) => it.running && it.id === q.id)) assert.ok(Date.now() < deadline, 'it still runs')
})

test('terminals', async () => {
  const p = await box.exec('stty size; read x; stty size', { tty: { cols: 80, rows: 24 } })
  await p.resize(100, 40)
  await p.write('\n')
  let text = ''
  for await (const piece of p) text += piece.data.toString()
  assert.match(text, /40 100/)
  assert.equal((await p.wait()).code, 0)
})

test('background', async () => {
  const p = await box.exec('echo started; read x; echo "$x"; sleep 60', { background: true, stdin: true })
  await p.write('later\n')
  await p.close()
  const seen: string[] = []
  for await (const piece of box.logs(p.id, { follow: true })) {
    seen.push(piece.data.toString())
    if (seen.join('').includes('later')) break
  }
  assert.equal(seen.join(''), 'started\nlater\n')
  const again = await box.attach(p.id)
  await box.signal(p.id, 9)
  assert.equal((await again.wait()).signal, 9)
  await again.close()
  await assert.rejects(box.signal('nope', 9), atoll.NotFoundError)
})

test('files', async () => {
  const { files } = box
  const info = await files.write('/data/é/file', 'grüße', { mode: 0o600 })
  assert.deepEqual([info.size, info.mode], [7, 0o600])
  assert.equal((await files.read('/data/é/file')).toString(), 'grüße')
  assert.equal((await files.read('/data/é/file', { offset: 2, length: 2 })).toString(), 'ü')
  await assert.rejects(files.write('/data/é/file', '', { replace: false }), atoll.AlreadyExistsError)
  await assert.rejects(files.write('/none/file', '', { parents: false }), atoll.NotFoundError)
  await assert.rejects(files.read('/none'), { code: 'not_found' })
  await assert.rejects(files.read('relative'), atoll.InvalidError)
  assert.deepEqual([await files.exists('/data'), await files.exists('/none')], [true, false])
  await files.mkdir('/data/dir')
  await files.move('/data/é/file', '/data/dir/moved')
  async function* pieces() {
    for (let i = 0; i < 100; i++) yield Buffer.alloc(10_000, i)
  }
  assert.equal((await files.write('/data/big', pieces())).size, 1_000_000)
  const names: string[] = []
  for await (const f of files.list('/data', -1)) names.push(f.path)
  assert.deepEqual(names, ['big', 'dir', 'dir/moved', 'é'])
  await files.extract('/copy', files.export('/data', { zstd: true, exclude: ['big'] }))
  assert.equal((await box.run('find /copy -type f')).stdout.toString().trim().split('/').at(-1), 'moved')
  await files.remove('/data', { recursive: true })
  assert.equal(await files.exists('/data'), false)
})

test('watch', async () => {
  await box.files.mkdir('/watched')
  const abort = new AbortController()
  const events = box.files.watch('/watched', { signal: abort.signal })
  const next = events.next()
  for (let i = 0; ; i++) {
    await box.files.write(`/watched/${i}`, '')
    const event = await Promise.race([next, setTimeout(100, undefined)])
    if (!event) continue
    assert.equal(event.value?.op, 'create')
    break
  }
  abort.abort()
  await assert.rejects(
    async () => {
      for await (const _ of events);
    },
    { name: 'AbortError' },
  )
})

test('ports', async () => {
  await box.files.write('/www/index.html', 'served')
  const server = await box.exec(['python3', '-u', '-m', 'http.server', '8000', '-d', '/www'], { background: true })
  for await (const _ of server) break // it says that it serves
  await server.close()
  const conn = await box.dial(8000)
  conn.end('GET /index.html HTTP/1.0\r\n\r\n')
  let text = ''
  for await (const piece of conn) text += piece
  assert.match(text, /200 OK[\s\S]*served$/)
  await assert.rejects(box.dial(9), atoll.UnavailableError)
  await assert.rejects(box.portURL(8000), atoll.UnsupportedError)
  await using named = new atoll.Client({ host: daemon.host, key: daemon.key })
  const there = await named.get('demo')
  const url = await there.portURL(8000)
  assert.match(url, new RegExp(`^http://8000-${box.id}\\.localhost:`))
  const { token } = await there.portToken([8000], { expiresMs: 60_000 })
  const at = new URL(daemon.host)
  const answer = await fetch(`${at.origin}/index.html`, {
    headers: { 'Atoll-Sandbox': box.id, 'Atoll-Port': '8000', 'Atoll-Token': token },
  })
  assert.equal(await answer.text(), 'served')

  const { hostPort } = await box.publish(8000)
  assert.ok(hostPort)
  assert.equal(await (await fetch(`http://127.0.0.1:${hostPort}/index.html`)).text(), 'served')
  const listed = (await client.publishedPorts()).filter((p) => p.sandbox === box.id)
  assert.deepEqual(
    listed.map((p) => [p.port, p.hostPort]),
    [[8000, hostPort]],
  )
  await assert.rejects(box.publish(8001, { hostPort }), atoll.ConflictError)
  await box.unpublish(hostPort)
  assert.ok((await client.publishedPorts()).every((p) => p.sandbox !== box.id))
  await assert.rejects(fetch(`http://127.0.0.1:${hostPort}/index.html`))
  await assert.rejects(box.preview(8000), atoll.UnsupportedError)
  await assert.rejects(box.previews(), atoll.UnsupportedError)
})

test('states, snapshots and forks', async () => {
  await box.files.write('/kept', 'yes')
  assert.equal((await box.pause()).state, 'paused')
  await assert.rejects(box.run(['true']), atoll.ConflictError)
  assert.equal((await box.resume()).state, 'running')
  const snap = await box.snapshot({ name: 'kept', labels: { a: 'b' } })
  const copy = await client.create({ snapshot: snap.name })
  const [fork, ...more] = await box.fork(1, { prefix: 'fork' })
  assert.ok(fork && more.length === 0)
  for (const it of [copy, fork]) assert.equal((await it.files.read('/kept')).toString(), 'yes')
  assert.equal((await fork.stop()).state, 'stopped')
  assert.equal((await fork.start()).state, 'running')
  assert.equal((await fork.update({ labels: { new: 'label' } })).labels?.new, 'label')
  assert.ok((await fork.usage()).memory > 0)
  const ended = fork.wait()
  ended.catch(() => {}) // it may fail before it is awaited below
  await fork.destroy()
  await ended.then(
    (exit) => assert.equal(exit.reason, 'killed'),
    (e) => assert.ok(e instanceof atoll.GoneError), // it was gone before the question came
  )
  await copy.destroy()
  assert.equal((await copy.refresh()).state, 'gone')
  await assert.rejects(copy.run(['true']), atoll.GoneError)
  const names: string[] = []
  for await (const s of client.snapshots.list({ a: 'b' })) names.push(s.name)
  assert.deepEqual(names, ['kept'])
  await client.snapshots.remove('kept')
})

test('listing', async () => {
  const found: string[] = []
  for await (const s of client.list({ labels: { team: 'js' }, states: ['running'] })) found.push(s.name)
  assert.deepEqual(found, ['demo'])
  assert.equal((await client.get('demo')).id, box.id)
  assert.ok((await client.providers()).some((p) => p.name === 'gvisor'))
  for (const ref of ['none', '..', '../keys', '']) await assert.rejects(client.get(ref), atoll.AtollError, ref)
})

test('creating once', async () => {
  const key = { idempotencyKey: `key-${Date.now()}` }
  const one = await client.create({ image: 'host' }, key)
  const two = await client.create({ image: 'host' }, key)
  assert.equal(one.id, two.id)
  await assert.rejects(client.create({ image: 'host', name: 'other' }, key), atoll.ConflictError)
  await one.destroy()
  await assert.rejects(
    client.create({ name: 'UPPER' }),
    (e: atoll.AtollError) => e instanceof atoll.InvalidError && e.message !== '' && e.code === 'invalid',
  )
  await assert.rejects(client.create({}, { signal: AbortSignal.abort() }), { name: 'AbortError' })
})

test('creating is given up while a registry does not answer', async () => {
  const abort = new AbortController()
  const registry = createServer(() => abort.abort()).listen(0, '127.0.0.1')
  await once(registry, 'listening')
  const { port } = registry.address() as AddressInfo
  const name = 'given-up'
  await assert.rejects(client.create({ name, image: `127.0.0.1:${port}/none` }, { signal: abort.signal }), { name: 'AbortError' })
  await (await client.create({ name })).destroy() // the name is free
  registry.close()
})

test('workspaces, profiles and secrets', async () => {
  await client.workspaces.create({ name: 'notes' })
  {
    await using writer = await client.create({ workspaces: [{ name: 'notes' }] })
    await writer.files.write('/workspace/a', 'x')
  }
  const version = await client.workspaces.persist('notes', 'mine')
  assert.ok((await client.workspaces.versions('notes')).some((v) => v.number === version.number))
  assert.ok((await client.workspaces.list()).some((w) => w.name === 'notes'))
  await client.workspaces.remove('notes')

  const made = await client.profiles.create({ name: 'docs', rules: [{ action: 'allow', hosts: ['api.example.com'] }] })
  assert.equal((await client.profiles.test('docs', 'https://api.example.com/x')).allow, true)
  assert.equal((await client.profiles.test('docs', 'https://other.example/x')).allow, false)
  await assert.rejects(client.profiles.apply({ name: 'docs' }, { ifVersion: made.version + 5 }), atoll.ConflictError)
  assert.equal((await client.profiles.get('docs')).version, made.version)
  await client.profiles.remove('docs')

  await client.secrets.create({ name: 'token', value: 'hush-hush', hosts: ['api.example.com'] })
  await client.secrets.rotate('token', 'quiet-please')
  const listed = JSON.stringify(await client.secrets.list())
  assert.ok(listed.includes('"token"') && !listed.includes('hush') && !listed.includes('quiet'))
  await client.secrets.remove('token')
})

test('events', async () => {
  const past: string[] = []
  let last = 0
  for await (const e of client.events({ sandbox: box.id, types: ['sandbox.created'] })) {
    past.push(e.type)
    last = e.seq
  }
  assert.deepEqual(past, ['sandbox.created'])
  const abort = new AbortController()
  const live = client.events({ after: last, sandbox: box.id, follow: true, signal: abort.signal })
  assert.ok(((await live.next()).value as { seq: number }).seq > last)
  abort.abort()
  await assert.rejects(
    async () => {
      for await (const _ of live);
    },
    { name: 'AbortError' },
  )
})

test('sessions', async () => {
  const s = await client.sessions.create({}, { name: 'work', labels: { a: 'b' } })
  assert.ok(s.receipt)
  await s.files.write('/workspace/note', 'kept')
  assert.equal((await s.run('cat /workspace/note')).stdout.toString(), 'kept')
  const envelope = await s.envelope()
  assert.ok(JSON.stringify(envelope).includes('version'))
  await s.close()
  const again = await client.sessions.resume(JSON.parse(JSON.stringify(envelope)))
  assert.equal((await again.files.read('/workspace/note')).toString(), 'kept')
  assert.deepEqual(
    (await client.sessions.list({ a: 'b' })).map((it) => it.name),
    ['work'],
  )
  assert.ok((await again.targets()).length > 0)
  const attached = await client.sessions.attach('work', { turn: true })
  assert.equal(attached.id, again.id)
  await attached.release()
  await again.destroy()
  await assert.rejects(client.sessions.get('work'), atoll.NotFoundError)
})

test('the owner acts in a tenant', async () => {
  daemon.cli('tenant', 'create', 'acme')
  const theirs = await atoll.connect({ tenant: 'acme' })
  const one = await theirs.create({ name: 'theirs', provider: 'host' })
  assert.equal((await theirs.get('theirs')).id, one.id)
  await assert.rejects(client.get('theirs'), atoll.NotFoundError)
  await one.destroy()
  await theirs.close()
  const none = new atoll.Client({ tenant: 'nobody' })
  await assert.rejects(none.get('demo'), atoll.NotFoundError)
  await none.close()
  const refused = new atoll.Client({ host: daemon.host, key: daemon.key, tenant: 'acme' })
  await assert.rejects(refused.get('theirs'), atoll.DeniedError)
  await refused.close()
})

test('who may', async () => {
  await using stranger = new atoll.Client({ host: daemon.host, key: 'wrong' })
  await assert.rejects(stranger.get('demo'), atoll.UnauthorizedError)
  await using weak = new atoll.Client({ host: daemon.host, key: daemon.cli('key', 'create', '--allow', 'read').trim() })
  const it = await weak.get('demo')
  await assert.rejects(it.run(['true']), atoll.DeniedError)
  await assert.rejects(it.exec(['true']), atoll.DeniedError)
  await assert.rejects(it.files.write('/x', ''), atoll.DeniedError)
  const { inspect } = await import('node:util')
  assert.ok(!inspect(weak, { depth: 9, showHidden: true }).includes(daemon.key))
})

test('a program with a client that is idle can end', async () => {
  const { spawn } = await import('node:child_process')
  const code = `import { connect } from ${JSON.stringify(new URL('../src/index.js', import.meta.url).href)}
    const c = await connect(); const s = await c.get('demo'); await s.run(['true']); const p = await s.exec(['true']); await p.wait(); await p.close(); await c.close()`
  const child = spawn(process.execPath, ['--input-type=module', '-e', code], { stdio: ['ignore', 'ignore', 'inherit'] })
  const [status] = await once(child, 'exit', { signal: AbortSignal.timeout(20_000) })
  assert.equal(status, 0)
})
