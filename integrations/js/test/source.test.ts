import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'

import * as atoll from '../src/index.js'
import { Daemon } from './daemon.js'

const daemon = await Daemon.start()
const client = await atoll.connect()
const box = await client.create({ name: 'source' })
test.after(async () => {
  await box.destroy()
  await client.close()
  await daemon.stop()
})

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')

test('files are searched and patched, and repositories are read', async () => {
  assert.equal((await box.git('/').status()).isRepo, false)
  const setup =
    'mkdir /project && cd /project && git init -q -b main && git config user.name Ada && git config user.email ada@example.com && echo one >a.txt && git add . && git commit -qm first'
  assert.equal((await box.run(setup)).code, 0)
  await assert.rejects(box.files.write('/project/a.txt', 'two\n', { expect: sha256('other') }), atoll.ConflictError)
  await box.files.write('/project/a.txt', 'two\n', { expect: sha256('one\n') })
  const done = await box.files.patch('/project', '*** Begin Patch\n*** Add File: b.ts\n+print(1)\n*** End Patch')
  assert.deepEqual(done.files, [{ path: 'b.ts', status: 'added', additions: 1, deletions: 0 }])
  const found = await box.files.search('/project', { content: 'print\\(\\d\\)', name: '*.ts' })
  assert.deepEqual(found.matches, [{ path: 'b.ts', line: 1, column: 1, text: 'print(1)' }])
  const git = box.git('/project')
  const status = await git.status()
  assert.deepEqual([status.head, status.files?.map((f) => f.path)], ['main', ['a.txt', 'b.ts']])
  assert.deepEqual(
    (await git.diff({ paths: ['a.txt'] })).files?.map((f) => [f.additions, f.deletions]),
    [[1, 1]],
  )
  assert.deepEqual(
    (await git.log({ max: 5 })).commits?.map((c) => c.subject),
    ['first'],
  )
  for await (const state of git.watch()) {
    assert.deepEqual([state.isRepo, state.head, state.commit, state.dirty, state.reason], [true, 'main', status.commit, true, 'start'])
    assert.equal(state.changedFileCount, status.files?.length)
    break
  }
  assert.equal((await git.show()).commit.author.name, 'Ada')
  assert.equal((await git.read('a.txt')).toString(), 'one\n')
  assert.deepEqual(
    (await git.blame('a.txt')).lines?.map((l) => l.text),
    ['two'],
  )
})

test('terminals are recorded', async () => {
  const recording = await box.record()
  const terminal = await box.terminal()
  await terminal.write('echo a$((40+2))b\n')
  let seen = ''
  for await (const chunk of terminal) if ((seen += chunk.toString()).includes('a42b')) break
  assert.equal((await client.recordings.stop(recording.id)).state, 'available')
  assert.match((await client.recordings.read(recording.id)).toString(), /a42b/)
  const ids: string[] = []
  for await (const r of client.recordings.list({ sandbox: box.id })) ids.push(r.id)
  assert.deepEqual(ids, [recording.id])
  await client.recordings.remove(recording.id)
  await assert.rejects(client.recordings.get(recording.id), atoll.NotFoundError)
})
