import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Manifest } from '@openai/agents-core/sandbox'
import * as errors from '@openai/agents-core/sandbox'

import { AtollSandboxClient, type AtollSandboxSession } from '../src/index.js'
import { cli, end } from './daemon.js'

const client = new AtollSandboxClient()
test.after(async () => {
  await client.close()
  assert.deepEqual(end(), [], 'the tests left sandboxes')
})

const manifest = () =>
  new Manifest({
    entries: {
      'app/main.py': { type: 'file', content: "print('hello')\n", permissions: '-rwxr-x---' },
      'notes.txt': { type: 'file', content: 'grüße\n' },
      src: { type: 'local_dir', src: new URL('../../src', import.meta.url).pathname },
    },
    environment: { FOO: { value: "b a'r" } },
  })

async function using(body: (s: AtollSandboxSession) => Promise<void>, options = {}) {
  const s = await client.create(manifest(), options)
  try {
    await body(s)
  } finally {
    await s.close()
    await s.delete() // twice is success
    assert.equal(await s.running(), false)
  }
}

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes)

test('commands', () =>
  using(async (s) => {
    assert.equal(await s.running(), true)
    const out = await s.execCommand({ cmd: 'pwd; cat notes.txt\nprintf %s "$FOO"; echo err >&2; exit 3' })
    assert.match(out, /exited with code 3/)
    assert.match(out, /\/workspace\ngrüße\nb a'r\nerr$/)
    assert.match(await s.execCommand({ cmd: 'stat -c %a main.py; ls ../src', workdir: 'app' }), /750\n[^]*session\.ts/)
    const raw = await s.exec({ cmd: 'printf a; printf b >&2', login: false })
    assert.deepEqual([raw.stdout, raw.stderr, raw.exitCode], ['a', 'b', 0])
    const all = await Promise.all([1, 2, 3, 4].map((i) => s.execCommand({ cmd: `echo n${i}` })))
    all.forEach((o, i) => assert.match(o, new RegExp(`n${i + 1}$`)))
    await assert.rejects(s.execCommand({ cmd: 'true', workdir: '../etc' }))
  }))

test('a command that takes too long', () =>
  using(
    async (s) => {
      await assert.rejects(s.execCommand({ cmd: 'sleep 60' }), errors.SandboxExecTimeoutError)
      assert.match(await s.execCommand({ cmd: 'echo alive' }), /alive/)
    },
    { execTimeoutMs: 300 },
  ))

test('files', () =>
  using(async (s) => {
    assert.equal(text(await s.readFile({ path: 'app/main.py' })), "print('hello')\n")
    assert.equal(text(await s.readFile({ path: 'notes.txt', maxBytes: 2 })), 'gr')
    assert.equal(text(await s.readFile({ path: 'notes.txt', runAs: 'root' })), 'grüße\n')
    assert.deepEqual([await s.pathExists('missing'), await s.pathExists('notes.txt'), await s.directoryExists('app')], [false, true, true])
    await assert.rejects(s.readFile({ path: 'missing' }), errors.SandboxWorkspaceReadNotFoundError)
    assert.deepEqual(
      (await s.listDir({ path: 'app' })).map((e) => [e.name, e.path, e.type]),
      [['main.py', 'app/main.py', 'file']],
    )
    await s.execCommand({ cmd: 'ln -s /etc/passwd outside; ln -s /etc dir; ln -s notes.txt inside' })
    for (const path of ['outside', 'dir/passwd', '../etc/passwd', '/etc/passwd']) await assert.rejects(s.readFile({ path }), path)
    assert.equal(text(await s.readFile({ path: 'inside' })), 'grüße\n')
    const editor = s.createEditor()
    await editor.createFile({ type: 'create_file', path: 'd/e/ü b.txt', diff: '+one\n+two\n' })
    await assert.rejects(async () => editor.createFile({ type: 'create_file', path: 'notes.txt', diff: '+x\n' }), /exists/)
    await editor.updateFile({ type: 'update_file', path: 'd/e/ü b.txt', diff: '@@\n one\n-two\n+2\n' })
    assert.equal(text(await s.readFile({ path: 'd/e/ü b.txt' })).trim(), 'one\n2')
    await assert.rejects(
      async () => editor.updateFile({ type: 'update_file', path: 'none', diff: '@@\n-a\n+b\n' }),
      errors.SandboxApplyPatchFileNotFoundError,
    )
    await assert.rejects(async () => editor.createFile({ type: 'create_file', path: 'dir/evil', diff: '+x\n' }))
    await editor.deleteFile({ type: 'delete_file', path: 'd/e/ü b.txt' })
    assert.equal(await s.pathExists('d/e/ü b.txt'), false)
    const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
    await s.materializeEntry({ path: 'a.png', entry: { type: 'file', content: Buffer.from(png, 'base64') } })
    assert.equal((await s.viewImage({ path: 'a.png' })).type, 'image')
    await s.applyManifest(
      new Manifest({ entries: { more: { type: 'dir', children: { x: { type: 'file', content: 'x' } } } }, environment: { BAR: 'bar' } }),
    )
    assert.match(await s.execCommand({ cmd: 'cat more/x; echo $BAR' }), /xbar/)
    await assert.rejects(s.materializeEntry({ path: 'm', entry: { type: 'mount', source: 's' } }))
  }))

test('terminals', () =>
  using(async (s) => {
    const done = await s.execCommand({ cmd: 'stty size; tty >/dev/null && echo yes; exit 4', tty: true, yieldTimeMs: 5000 })
    assert.match(done, /exited with code 4/)
    assert.match(done, /24 80\s+yes/)
    const asked = await s.execCommand({ cmd: 'read x; echo got $x; exit 5', tty: true, yieldTimeMs: 200 })
    const sessionId = Number(/session ID (\d+)/.exec(asked)?.[1])
    const told = await s.writeStdin({ sessionId, chars: "it's\n", yieldTimeMs: 5000 })
    assert.match(told, /exited with code 5/)
    assert.match(told, /got it's/)
    await assert.rejects(s.writeStdin({ sessionId }), errors.SandboxPtySessionNotFoundError)
  }))

test('persist and hydrate', async () => {
  let archive: Uint8Array = new Uint8Array()
  await using(async (s) => {
    await s.execCommand({ cmd: `mkdir -p a/b; echo x >a/b/f; ln -s ../../notes.txt a/b/rel; mkdir ${'n'.repeat(200)}` })
    archive = await s.persistWorkspace()
  })
  await using(async (s) => {
    await s.execCommand({ cmd: 'echo old >old' })
    await s.hydrateWorkspace(archive)
    assert.match(await s.execCommand({ cmd: 'cat a/b/f a/b/rel; test -d n*n && test ! -e old && echo all' }), /x\ngrüße\nall$/)
    await assert.rejects(s.hydrateWorkspace(new Uint8Array(1024).fill(7)), errors.SandboxWorkspaceArchiveWriteError)
    assert.equal(await s.pathExists('a/b/f'), true)
  })
})

test('ports', () =>
  using(
    async (s) => {
      await s.session.exec(['python3', '-m', 'http.server', '8000', '-d', '/workspace'], { background: true })
      const at = await s.resolveExposedPort(8000)
      const deadline = Date.now() + 20_000
      for (;;) {
        const answer = await fetch(`http://${at.host}:${at.port}/notes.txt`).catch(() => undefined)
        if (answer) {
          assert.equal(await answer.text(), 'grüße\n')
          break
        }
        assert.ok(Date.now() < deadline, 'the server does not answer')
      }
      await assert.rejects(s.resolveExposedPort(9000), errors.SandboxExposedPortUnavailableError)
    },
    { exposedPorts: [8000] },
  ))

test('options', async () => {
  await using(
    async (s) => {
      const info = await s.session.refresh()
      assert.equal(info.labels?.team, 'a')
      assert.equal(info.resources?.memory, 256 << 20)
      assert.match(await s.execCommand({ cmd: 'touch kept; pwd' }), /workspace/)
    },
    { labels: { team: 'a' }, memory: 256 << 20, workspace: 'shared', egress: ['api.example.com'] },
  )
  assert.match(cli('workspace', 'ls'), /shared/)
  for (const bad of [{ image: 'dir:/etc' }, { fromSnapshot: 'none' }, { profile: 'none' }, { provider: 'none' }]) {
    await assert.rejects(
      client.create(manifest(), bad),
      (e: errors.SandboxError) => e instanceof errors.SandboxError && Boolean(e.code),
      JSON.stringify(bad),
    )
  }
})

test('pause, another process, resume', async () => {
  const s = await client.create(manifest(), { pauseOnExit: true })
  await s.execCommand({ cmd: 'echo kept >kept; (sleep 1000 & echo $! >/tmp/pid)' })
  assert.equal(client.canPersistOwnedSessionState(s.state), true)
  const serialized = JSON.stringify(await client.serializeSessionState(s.state))
  await s.close()
  const other = new AtollSandboxClient()
  const again = await other.resume(await other.deserializeSessionState(JSON.parse(serialized)))
  assert.match(await again.execCommand({ cmd: 'cat kept; kill -0 $(cat /tmp/pid) && printf %s "$FOO"' }), /kept\nb a'r$/)
  await other.delete(again.state)
  await other.delete(again.state)
  // One that is proved to be gone is made anew, with the files of the manifest.
  const fresh = await other.resume(await other.deserializeSessionState(JSON.parse(serialized)))
  assert.match(await fresh.execCommand({ cmd: 'cat notes.txt; ls kept' }), /grüße[^]*code 2|grüße/)
  await other.delete(fresh.state)
  await other.close()
})

test('a snapshot of Atoll as the archive of a workspace', async () => {
  let archive: Uint8Array = new Uint8Array()
  const options = { workspacePersistence: 'snapshot' as const }
  const first = await client.create(manifest(), options)
  await first.execCommand({ cmd: 'echo kept >kept; echo outside >/root/outside' })
  const once = await first.persistWorkspace()
  archive = await first.persistWorkspace()
  assert.ok(archive.length < 500)
  assert.notDeepEqual(archive, once)
  assert.equal(cli('snapshot', 'ls', '-q').split('\n').filter(Boolean).length, 1, 'a new one replaces the last one')
  await first.close()
  const second = await client.create(manifest(), options)
  const before = second.session.id
  await second.hydrateWorkspace(archive)
  assert.match(await second.execCommand({ cmd: 'cat kept /root/outside' }), /kept\noutside$/)
  assert.notEqual(second.session.id, before)
  await assert.rejects(
    second.hydrateWorkspace(new TextEncoder().encode('ATOLL_SANDBOX_SNAPSHOT_V1\n{"snapshot":"none"}')),
    errors.SandboxWorkspaceArchiveWriteError,
  )
  assert.match(await second.execCommand({ cmd: 'cat kept' }), /kept$/)
  await second.close()
  await client.delete(first.state) // its snapshot, too
  assert.equal(cli('snapshot', 'ls', '-q'), '')
  // With a workspace, a snapshot would not have its files.
  await using(async (s) => assert.ok((await s.persistWorkspace()).length > 5000), { ...options, workspace: 'shared' })
})

test('no daemon', async () => {
  const nobody = new AtollSandboxClient({ host: 'unix:///nonexistent/atoll.sock' })
  await assert.rejects(nobody.create(manifest()), errors.SandboxWorkspaceStartError)
  const lost = new AtollSandboxClient({ host: 'http://127.0.0.1:9' })
  const state = { manifest: manifest(), environment: {}, options: {}, atollSession: 'x' }
  await assert.rejects(lost.resume(state), errors.SandboxWorkspaceStartError) // and makes no second sandbox
})
