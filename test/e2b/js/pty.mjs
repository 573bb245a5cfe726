import { assert, box, rejects, test, until } from './harness.mjs'

const text = (chunks) => Buffer.concat(chunks.map((c) => Buffer.from(c))).toString()

test('a terminal', () => box(async (sbx) => {
  const out = []
  const h = await sbx.pty.create({ cols: 90, rows: 30, timeoutMs: 0, envs: { MARK: 'mark' }, cwd: '/tmp', onData: (d) => out.push(d) })
  const type = (s) => sbx.pty.sendInput(h.pid, new TextEncoder().encode(s))
  await type('stty size; echo got-$MARK; pwd\n')
  await until(() => /30 90[^]*got-mark[^]*\/tmp/.test(text(out)), 'the answer')
  await sbx.pty.resize(h.pid, { cols: 100, rows: 40 })
  await type('stty size\n')
  await until(() => text(out).includes('40 100'), 'the new size')
  await type('exit 5\n')
  const e = await rejects(h.wait(), 'CommandExitError')
  assert.equal(e.exitCode, 5)
}))

test('a terminal is killed', () => box(async (sbx) => {
  const h = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await sbx.pty.kill(h.pid), true)
  await rejects(h.wait(), 'CommandExitError')
  assert.equal(await sbx.pty.kill(h.pid), false)
}))

test('a terminal is found again', () => box(async (sbx) => {
  const h = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {} })
  await h.disconnect()
  const out = []
  const again = await sbx.pty.connect(h.pid, { onData: (d) => out.push(d) })
  await sbx.pty.sendInput(h.pid, new TextEncoder().encode('echo a$((1+1))b\n'))
  await until(() => text(out).includes('a2b'), 'the answer')
  await again.kill()
}), '2.14.1')
