import { Sandbox, assert, box, gone, rejects, since, test, until } from './harness.mjs'

const pause = (sbx, opts) => (sbx.pause ? sbx.pause(opts) : sbx.betaPause(opts))

test('pause and go on with memory', () => box(async (sbx) => {
  await sbx.files.write('f', 'kept')
  // The file is replaced, not rewritten: a reader could see it empty and fail.
  const h = await sbx.commands.run('i=0; while true; do i=$((i+1)); echo $i > new; mv new count; sleep 0.1; done', { background: true, timeoutMs: 0 })
  const cut = h.wait().catch((e) => e)
  await until(() => sbx.files.exists('count'), 'it counts')
  assert.notEqual(await pause(sbx), false)
  await cut
  assert.equal((await sbx.getInfo()).state, 'paused')
  assert.equal(await sbx.isRunning(), false)
  assert.equal((await sbx.getInfo()).state, 'paused')
  const listed = await Sandbox.list({ query: { state: ['paused'] } }).nextItems()
  assert.ok(listed.some((s) => s.sandboxId === sbx.sandboxId))
  if (since('2.31.0')) assert.equal(await sbx.pause(), false)
  await rejects(sbx.setTimeout(1000), ...gone)
  assert.deepEqual(await sbx.getMetrics(), [])
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 60_000 })
  const left = (await again.getInfo()).endAt - Date.now()
  assert.ok(left > 50_000 && left < 61_000, `lives ${left} ms`)
  assert.equal(await again.files.read('f'), 'kept')
  assert.ok((await again.commands.list()).some((p) => p.pid === h.pid), 'the process is there')
  const before = Number(await again.files.read('count'))
  await until(async () => Number(await again.files.read('count')) > before, 'it goes on counting')
  assert.equal(await again.commands.kill(h.pid), true)
}))

test('pause and keep only files', () => box(async (sbx) => {
  await sbx.files.write('f', 'kept')
  const h = await sbx.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const cut = h.wait().catch((e) => e)
  assert.equal(await sbx.pause({ keepMemory: false }), true)
  await cut
  assert.equal((await sbx.getInfo()).state, 'paused')
  const again = await Sandbox.connect(sbx.sandboxId)
  assert.equal(await again.files.read('f'), 'kept')
  assert.deepEqual(await again.commands.list(), [])
}), '2.31.0')

test('kept with memory, and started from the files', () => box(async (sbx) => {
  await sbx.files.write('f', 'kept')
  const h = await sbx.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const cut = h.wait().catch((e) => e)
  assert.equal(await sbx.pause(), true)
  await cut
  const again = await Sandbox.connect(sbx.sandboxId, { onResume: 'reboot', timeoutMs: 60_000 })
  assert.equal((await again.getInfo()).state, 'running')
  assert.equal(await again.files.read('f'), 'kept')
  assert.deepEqual(await again.commands.list(), [])
  assert.equal((await again.commands.run('echo runs')).stdout, 'runs\n')
}), '2.51.0')

test('the timeout pauses, traffic wakes', () => box(async (sbx) => {
  await sbx.files.write('f', 'kept')
  await until(async () => (await sbx.getInfo()).state === 'paused', 'it is paused')
  assert.deepEqual((await sbx.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  assert.equal(await sbx.files.read('f'), 'kept')
  assert.equal((await sbx.getInfo()).state, 'running')
}, { timeoutMs: 1000, lifecycle: { onTimeout: 'pause', autoResume: true } }), '2.31.0')

test('fork', () => box(async (sbx) => {
  await sbx.files.write('f', 'common')
  const h = await sbx.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const made = await sbx.fork({ count: 2, timeoutMs: 60_000 })
  try {
    assert.equal(new Set([sbx.sandboxId, ...made.map((s) => s.sandboxId)]).size, 3)
    for (const one of made) {
      assert.equal(await one.files.read('f'), 'common')
      assert.ok((await one.commands.list()).some((p) => p.pid === h.pid))
      await one.files.write('f', 'own')
    }
    assert.equal(await sbx.files.read('f'), 'common')
  } finally {
    for (const one of made) await one.kill()
  }
  assert.equal(await h.kill(), true)
}), '2.35.0')

test('snapshots', () => box(async (sbx) => {
  await sbx.files.write('f', 'then')
  const snap = await sbx.createSnapshot()
  await sbx.files.write('f', 'now')
  const copy = await Sandbox.create(snap.snapshotId, { timeoutMs: 60_000 })
  assert.equal(await copy.files.read('f'), 'then')
  const listed = await Sandbox.listSnapshots({ sandboxId: sbx.sandboxId }).nextItems()
  assert.deepEqual(listed.map((s) => s.snapshotId), [snap.snapshotId])
  if (sbx.listSnapshots) assert.equal((await sbx.listSnapshots().nextItems()).length, 1)
  await copy.kill()
  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), false)
  await rejects(Sandbox.create(snap.snapshotId), 'NotFoundError', 'SandboxError')
}), '2.14.1')

test('what was called beta', () => box(async (sbx) => {
  if (sbx.betaPause) {
    await sbx.betaPause()
    assert.equal((await sbx.getInfo()).state, 'paused')
    await Sandbox.connect(sbx.sandboxId)
    await Sandbox.betaPause(sbx.sandboxId)
    await Sandbox.connect(sbx.sandboxId)
  }
  if (Sandbox.betaCreate) {
    const other = await Sandbox.betaCreate({ autoPause: true, timeoutMs: 60_000 })
    assert.equal(await other.isRunning(), true)
    await other.kill()
  }
  // The image has no MCP gateway: the SDK computes its address, and there is no token.
  if (sbx.getMcpUrl) assert.match(sbx.getMcpUrl(), /50005/)
  if (sbx.getMcpToken) await rejects(sbx.getMcpToken(), 'NotFoundError')
}))
