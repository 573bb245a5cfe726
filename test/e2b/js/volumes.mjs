import { Sandbox, assert, rejects, sdk, test, until } from './harness.mjs'

const { Volume } = sdk

async function volume(fn) {
  const vol = await Volume.create('Vol_' + Math.random().toString(36).slice(2))
  try {
    return await fn(vol)
  } finally {
    assert.equal(await Volume.destroy(vol.volumeId), true)
  }
}

test('volumes: make, find, list, remove', () => volume(async (vol) => {
  assert.match(vol.name, /^Vol_/)
  assert.equal((await Volume.getInfo(vol.volumeId)).name, vol.name)
  const again = await Volume.connect(vol.volumeId)
  assert.equal(again.token, vol.token)
  assert.ok((await Volume.list()).some((v) => v.volumeId === vol.volumeId && v.name === vol.name))
  await rejects(Volume.create(vol.name), 'VolumeError')
  await rejects(Volume.create('a b'), 'VolumeError')
  await rejects(Volume.getInfo('ws-none'), 'VolumeNotFoundError', 'NotFoundError')
  assert.equal(await Volume.destroy('ws-none'), false)
}), '2.18.0')

test('volumes: files', () => volume(async (vol) => {
  const e = await vol.writeFile('/a/b/f.txt', 'hellö', { force: true })
  assert.deepEqual([e.name, e.type, e.path, Number(e.size)], ['f.txt', 'file', '/a/b/f.txt', 6])
  assert.equal(await vol.readFile('/a/b/f.txt'), 'hellö')
  assert.deepEqual(Buffer.from(await vol.readFile('a/b/f.txt', { format: 'bytes' })), Buffer.from('hellö'))
  assert.equal(await (await vol.readFile('/a/b/f.txt', { format: 'blob' })).text(), 'hellö')
  const chunks = []
  for await (const c of await vol.readFile('/a/b/f.txt', { format: 'stream' })) chunks.push(c)
  assert.equal(Buffer.concat(chunks).toString(), 'hellö')
  await vol.writeFile('/a/b/f.txt', new Blob(['short']))
  assert.equal(await vol.readFile('/a/b/f.txt'), 'short')
  await vol.writeFile('/empty', '')
  assert.equal(await vol.readFile('/empty'), '')
  const d = await vol.makeDir('/dir', { mode: 0o700, uid: 1000, gid: 1000 })
  assert.deepEqual([d.type, d.mode, d.uid], ['directory', 0o700, 1000])
  await rejects(vol.makeDir('/no/such/parent'), 'VolumePathNotFoundError', 'VolumeError', 'NotFoundError')
  await vol.makeDir('/yes/such/parent', { force: true })
  assert.deepEqual((await vol.list('/')).map((f) => f.path).sort(), ['/a', '/dir', '/empty', '/yes'])
  assert.deepEqual((await vol.list('/a', { depth: 2 })).map((f) => f.path), ['/a/b', '/a/b/f.txt'])
  assert.equal(await vol.exists('/a/b'), true)
  assert.equal(await vol.exists('/a/c'), false)
  const m = await vol.updateMetadata('/a/b/f.txt', { mode: 0o600 })
  assert.equal(m.mode, 0o600)
  assert.equal((await vol.getInfo('/a/b/f.txt')).mode, 0o600)
  await vol.remove('/a')
  assert.equal(await vol.exists('/a'), false)
  await rejects(vol.readFile('/a/b/f.txt'), 'VolumePathNotFoundError', 'NotFoundError')
  await rejects(vol.remove('/a'), 'VolumePathNotFoundError', 'NotFoundError')
  assert.equal(await vol.exists('/../../etc/passwd'), false)
}), '2.18.0')

test('volumes: several in one sandbox', () => volume((one) => volume(async (two) => {
  const opts = { timeoutMs: 60_000, volumeMounts: { '/mnt/one': one, '/mnt/two': two } }
  const sbx = await Sandbox.create(opts)
  try {
    const seen = (await sbx.getInfo()).volumeMounts.map((m) => `${m.name} ${m.path}`)
    assert.deepEqual(seen.sort(), [`${one.name} /mnt/one`, `${two.name} /mnt/two`].sort())
    await sbx.commands.run('echo 1 > /mnt/one/f; echo 2 > /mnt/two/f')
    assert.deepEqual([await one.readFile('/f'), await two.readFile('/f')], ['1\n', '2\n'])
    await rejects(Volume.destroy(two.volumeId), 'VolumeError')
  } finally {
    await sbx.kill()
  }
  await rejects(Sandbox.create({ volumeMounts: { '/mnt/one': one, '/mnt/one/in': two } }), 'InvalidArgumentError', 'SandboxError')
})), '2.18.0')

test('volumes: sandboxes share one', () => volume(async (vol) => {
  await vol.writeFile('/before', 'from outside')
  const opts = { timeoutMs: 60_000, volumeMounts: { '/mnt/data': vol } }
  const a = await Sandbox.create(opts)
  const b = await Sandbox.create({ ...opts, volumeMounts: { '/mnt/data': vol.name } })
  try {
    assert.deepEqual((await a.getInfo()).volumeMounts, [{ name: vol.name, path: '/mnt/data' }])
    assert.equal(await a.files.read('/mnt/data/before'), 'from outside')
    await a.commands.run('echo from a > /mnt/data/a')
    assert.equal((await b.commands.run('cat /mnt/data/a')).stdout, 'from a\n')
    await b.files.write('/mnt/data/b', 'from b')
    assert.equal(await vol.readFile('/b'), 'from b')
    await vol.writeFile('/while', 'while it runs')
    assert.equal((await a.commands.run('cat /mnt/data/while')).stdout, 'while it runs')
    // A link in a volume cannot lead outside the volume.
    await a.commands.run('ln -s /etc /mnt/data/etc; ln -s ../../.. /mnt/data/up')
    await assert.rejects(vol.readFile('/etc/passwd'))
    await assert.rejects(vol.list('/up'))
    await rejects(Volume.destroy(vol.volumeId), 'VolumeError')
  } finally {
    await a.kill()
    await b.kill()
  }
  const c = await Sandbox.create(opts)
  assert.equal((await c.commands.run('cat /mnt/data/a /mnt/data/b')).stdout, 'from a\nfrom b')
  await c.kill()
}), '2.18.0')

test('volumes: watched on request', () => volume(async (vol) => {
  const sbx = await Sandbox.create({ timeoutMs: 60_000, volumeMounts: { '/mnt/vol': vol } })
  try {
    await sbx.files.makeDir('/mnt/vol/d')
    const e = await rejects(sbx.files.watchDir('/mnt/vol/d', () => {}), 'InvalidArgumentError')
    assert.match(e.message, /network filesystem/)
    const seen = []
    const h = await sbx.files.watchDir('/mnt/vol/d', (e) => seen.push(`${e.type} ${e.name}`), { allowNetworkMounts: true })
    await sbx.files.write('/mnt/vol/d/f', 'x', { metadata: { k: 'v' } })
    await until(() => seen.includes('write f'), 'a write: ' + seen)
    assert.deepEqual((await sbx.files.getInfo('/mnt/vol/d/f')).metadata, { k: 'v' })
    await h.stop()
  } finally {
    await sbx.kill()
  }
}), '2.51.0')
