import { Sandbox, assert, box, gone, rejects, sdk, since, test, until } from './harness.mjs'

test('create, look, kill', async () => {
  const sbx = await Sandbox.create({ timeoutMs: 60_000, metadata: { 'a key': 'b c&d=é', other: '1' } })
  assert.match(sbx.sandboxId, /^[a-z0-9]+$/)
  const info = await sbx.getInfo()
  assert.equal(info.sandboxId, sbx.sandboxId)
  assert.deepEqual(info.metadata, { 'a key': 'b c&d=é', other: '1' })
  assert.equal(info.templateId, 'base')
  assert.equal(info.state, 'running')
  const left = info.endAt - info.startedAt
  assert.ok(left > 59_000 && left < 62_000, `lives ${left} ms`)
  if (Sandbox.getFullInfo) assert.equal((await Sandbox.getFullInfo(sbx.sandboxId)).sandboxId, sbx.sandboxId)
  assert.ok(info.cpuCount > 0 && info.memoryMB > 0)
  assert.equal(await sbx.isRunning(), true)
  assert.notEqual(await sbx.kill(), false)
  assert.equal(await sbx.isRunning(), false)
  if (since('2.45.0')) assert.equal(await sbx.kill(), false)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
  await rejects(sbx.getInfo(), ...gone)
  await rejects(Sandbox.connect(sbx.sandboxId), 'SandboxNotFoundError', 'NotFoundError')
  await rejects(sbx.setTimeout(1000), ...gone)
})

test('wrong keys and templates', async () => {
  const key = 'e2b_' + '0'.repeat(138)
  await rejects(Sandbox.create({ apiKey: key }), 'AuthenticationError')
  await rejects(Sandbox.list({ apiKey: key }).nextItems(), 'AuthenticationError')
  await rejects(Sandbox.create('no-such-template'), 'NotFoundError', 'SandboxError')
  await rejects(Sandbox.create('image:dir:/etc'), 'SandboxError')
})

if (sdk.E2B) test('clients with options of their own', async () => {
  const mine = new sdk.E2B({ apiKey: process.env.E2B_API_KEY })
  const other = new sdk.E2B({ apiKey: 'e2b_' + '0'.repeat(138) })
  const sbx = await mine.Sandbox.create({ timeoutMs: 60_000 })
  try {
    assert.equal((await sbx.commands.run('echo mine')).stdout, 'mine\n')
    await rejects(other.Sandbox.connect(sbx.sandboxId), 'AuthenticationError')
    await rejects(other.Volume.list(), 'AuthenticationError', 'VolumeError')
    await rejects(other.Secret.list().nextItems(), 'AuthenticationError', 'SecretError')
    await rejects(other.Template.exists('no-such-template'), 'AuthenticationError', 'TemplateError')
    assert.ok(Array.isArray(await mine.Volume.list()))
    assert.ok(Array.isArray(await mine.Secret.list().nextItems()))
    assert.equal(await mine.Template.exists('no-such-template'), false)
  } finally {
    await sbx.kill()
  }
})

test('connect extends and never shortens', () => box(async (sbx) => {
  const before = (await sbx.getInfo()).endAt
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 10_000 })
  assert.deepEqual((await sbx.getInfo()).endAt, before)
  await sbx.connect({ timeoutMs: 10_000 })
  assert.deepEqual((await sbx.getInfo()).endAt, before)
  await Sandbox.connect(sbx.sandboxId, { timeoutMs: 300_000 })
  assert.ok((await sbx.getInfo()).endAt - before > 100_000)
  await sbx.files.write('x', 'from the first')
  assert.equal(await again.files.read('x'), 'from the first')
}), '2.6.3')

// Old SDKs reset the timeout, and resume sandboxes that do not allow it.
if (!since('2.6.3')) test('connect sets the timeout', () => box(async (sbx) => {
  const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 10_000 })
  const left = (await sbx.getInfo()).endAt - Date.now()
  assert.ok(left > 5_000 && left < 11_000, `lives ${left} ms`)
  await again.setTimeout(300_000)
  assert.ok((await sbx.getInfo()).endAt - Date.now() > 290_000)
  assert.equal(await sbx.connect({ timeoutMs: 300_000 }), sbx)
  await sbx.files.write('x', 'from the first')
  assert.equal(await again.files.read('x'), 'from the first')
}))

test('the timeout ends it', async () => {
  const sbx = await Sandbox.create({ timeoutMs: 60_000 })
  const stuck = sbx.commands.run('sleep 1000')
  const failed = rejects(stuck, 'TimeoutError', 'SandboxError')
  await sbx.setTimeout(2_000)
  await failed
  await until(async () => !(await sbx.isRunning()), 'it is gone')
  await until(() => sbx.kill().then((found) => !found), 'the control plane knows')
})

// The SDK checks whether the sandbox still runs as soon as its stream fails.
test('killing it ends what waits with its timeout error', async () => {
  for (let i = 0; i < 8; i++) {
    const sbx = await Sandbox.create({ timeoutMs: 60_000 })
    const h = await sbx.commands.run('sleep 60', { background: true })
    const failed = rejects(h.wait(), 'TimeoutError')
    await Promise.all([sbx.kill(), failed])
  }
}, '2.45.0')

test('a timeout of 0 is now', async () => {
  const sbx = await Sandbox.create({ timeoutMs: 60_000 })
  await sbx.setTimeout(0)
  await until(() => sbx.kill().then((found) => !found), 'it has ended')
}, '2.45.0')

test('list: filters, order, pages', async () => {
  const tag = 'list-' + Math.random()
  const made = []
  for (const n of ['1', '2', '3']) made.push(await Sandbox.create({ metadata: { tag, n }, timeoutMs: 60_000 }))
  const ids = made.map((s) => s.sandboxId)
  try {
    const p = Sandbox.list({ query: { metadata: { tag } }, limit: 2 })
    assert.equal(p.hasNext, true)
    const first = await p.nextItems()
    assert.deepEqual(first.map((s) => s.sandboxId), [ids[2], ids[1]])
    assert.equal(p.hasNext, true)
    const second = await p.nextItems()
    assert.deepEqual(second.map((s) => s.sandboxId), [ids[0]])
    assert.equal(p.hasNext, false)
    await assert.rejects(p.nextItems())
    const one = await Sandbox.list({ query: { metadata: { tag, n: '2' }, state: ['running'] } }).nextItems()
    assert.deepEqual(one.map((s) => s.sandboxId), [ids[1]])
    assert.deepEqual(await Sandbox.list({ query: { metadata: { tag }, state: ['paused'] } }).nextItems(), [])
    if (since('2.45.0')) {
      const { startedAt } = await made[1].getInfo()
      const after = await Sandbox.list({ query: { metadata: { tag }, startedAfter: startedAt, template: 'base' }, order: 'asc' }).nextItems()
      assert.deepEqual(after.map((s) => s.sandboxId).slice(-1), [ids[2]])
    }
  } finally {
    for (const s of made) await s.kill()
  }
})

test('environment of the sandbox', () => box(async (sbx) => {
  assert.equal((await sbx.commands.run('echo $FOO $E2B_SANDBOX $E2B_SANDBOX_ID')).stdout, `bar true ${sbx.sandboxId}\n`)
  assert.equal((await sbx.commands.run('echo $FOO', { envs: { FOO: 'other' } })).stdout, 'other\n')
  // The locale is UTF-8, and SHELL is set as in a login.
  assert.equal((await sbx.commands.run('x=äöü; echo ${#x} $(printenv SHELL)')).stdout, '3 /bin/bash\n')
}, { envs: { FOO: 'bar' } }))

test('getHost', () => box(async (sbx) => {
  assert.match(sbx.getHost(3000), new RegExp(`^3000-${sbx.sandboxId}\\.`))
}))

test('killing it aborts what runs', async () => {
  const sbx = await Sandbox.create({ timeoutMs: 60_000 })
  const failed = rejects(sbx.commands.run('echo begun; sleep 1000', { timeoutMs: 0 }), 'TimeoutError', 'SandboxError')
  await until(() => sbx.commands.list().then((l) => l.length > 0), 'the command runs')
  await sbx.kill()
  const e = await failed
  assert.equal(e instanceof Error && e.constructor.name !== 'CommandExitError', true)
  assert.equal(await sbx.isRunning(), false)
  await rejects(sbx.commands.run('true'), 'TimeoutError', 'SandboxError')
})

test('metrics', () => box(async (sbx) => {
  const [m] = await sbx.getMetrics()
  assert.ok(m.cpuCount > 0 && m.memTotal > 0 && m.memUsed > 0 && m.diskTotal > 0, JSON.stringify(m))
  assert.ok(Math.abs(m.timestamp - Date.now()) < 600_000)
  if (since('2.45.0')) assert.deepEqual(await sbx.getMetrics({ start: new Date(Date.now() + 1000_000) }), [])
}))
