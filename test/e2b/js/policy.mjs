import { Sandbox, assert, box, rejects, sdk, since, test, until } from './harness.mjs'

const { Secret } = sdk

test('secrets', async () => {
  const name = 'token-' + Math.random().toString(36).slice(2)
  const made = await Secret.create(name.toUpperCase(), 'value-1', { metadata: { team: 'red' } })
  try {
    assert.deepEqual([made.name, made.version, made.metadata], [name, 1, { team: 'red' }])
    assert.ok(!JSON.stringify(made).includes('value-1'))
    const next = await Secret.update(made.secretId, 'value-2')
    assert.deepEqual([next.version, next.metadata], [2, { team: 'red' }])
    assert.equal((await Secret.getInfo(name)).secretId, made.secretId)
    assert.equal(await Secret.exists(name), true)
    const all = []
    for (const p = Secret.list({ limit: 1 }); p.hasNext;) all.push(...(await p.nextItems()))
    assert.ok(all.some((s) => s.name === name))
    await rejects(Secret.create(name, 'x'), 'SecretError')
  } finally {
    assert.equal(await Secret.destroy(name), true)
  }
  assert.equal(await Secret.destroy(name), false)
  assert.equal(await Secret.exists(name), false)
  await rejects(Secret.getInfo(name), 'SecretNotFoundError')
  await rejects(Secret.update(name, 'x'), 'SecretNotFoundError')
  assert.equal(Secret.placeholder?.(name) ?? Secret.get?.(name) ?? `\${e2b.secrets.${name}}`, `\${e2b.secrets.${name}}`)
}, '2.45.0')

test('network: what is allowed, and another while it runs', async () => {
  await box(async (sbx) => {
    const info = await sbx.getInfo()
    assert.deepEqual(info.network.allowOut, ['allowed.test'])
    const ask = (host) => sbx.commands.run(`getent hosts ${host} >/dev/null && echo known || echo unknown`).then((r) => r.stdout.trim())
    assert.equal(await ask('allowed.test'), 'known')
    assert.equal(await ask('other.test'), 'unknown')
    await sbx.updateNetwork({ allowOut: ['other.test'], denyOut: [sdk.ALL_TRAFFIC ?? '0.0.0.0/0'] })
    await until(() => ask('other.test').then((a) => a === 'known'), 'the new rules hold')
    assert.equal(await ask('allowed.test'), 'unknown')
    await rejects(sbx.updateNetwork({ denyOut: ['example.com'] }), 'SandboxError', 'InvalidArgumentError')
  }, { network: { allowOut: ['allowed.test'], denyOut: ['0.0.0.0/0'] } })
}, '2.25.0')

// This SDK does not support dnsServers, which the names here need.
test('network: a proxy of the sandbox', async () => {
  const { E2B_TEST_OUTSIDE: outside, E2B_TEST_PASSWORD: password } = process.env
  const base = process.env.E2B_API_URL ?? 'https://api.' + process.env.E2B_DOMAIN
  const egressProxy = { address: outside + ':1080', username: 'me', password }
  const network = { allowOut: ['named.test'], denyOut: ['0.0.0.0/0'] }
  const ask = (sbx) => sbx.commands.run('curl -sS -m 30 http://named.test/ || true').then((r) => r.stdout)
  await box(async (sbx) => {
    const put = async (network) => {
      const body = JSON.stringify({ dnsServers: [outside], ...network })
      const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
      assert.equal((await fetch(`${base}/sandboxes/${sbx.sandboxId}/network`, { method: 'PUT', headers, body })).status, 204)
    }
    assert.deepEqual((await sbx.getInfo()).network.egressProxy, { address: outside + ':1080', username: 'me' })
    await put({ ...network, egressProxy })
    assert.equal(await ask(sbx), 'named.test by proxy: true')
    const [copy] = await sbx.fork({ timeoutMs: 60_000 })
    try {
      assert.equal(await ask(copy), 'named.test by proxy: true') // with the same password
    } finally {
      await copy.kill()
    }
    await put({ ...network, egressProxy: { ...egressProxy, password: 'another' } })
    assert.equal(await ask(sbx), '') // there is no way around the proxy
    await put(network)
    assert.equal(await ask(sbx), 'named.test by proxy: false')
  }, { network: { ...network, egressProxy } })
  for (const address of ['10.1.2.3:1080', 'no port', '169.254.169.254:80']) {
    await rejects(Sandbox.create({ network: { ...network, egressProxy: { address } } }), 'InvalidArgumentError', 'SandboxError')
  }
}, '2.45.0')

test('network: identity tokens of the sandbox', async () => {
  const at = process.env.E2B_TEST_IDENTITY
  const opts = {
    iam: { tokens: { 'my cloud': Secret.iamToken({ audience: 'cloud.test', tokenType: 'JWT-SVID' }) } },
    network: { allowOut: [at], rules: { [at]: [{ transform: ({ iam }) => ({ headers: { Authorization: `Bearer ${iam.tokens['my cloud']}` } }) }] } },
  }
  if (process.env.E2B_API_URL) { // there is no name under which keys could be published
    await rejects(Sandbox.create(opts), 'SandboxError')
    return
  }
  await box(async (sbx) => {
    const said = JSON.parse((await sbx.commands.run(`curl -sS -m 30 'http://${at}/?audience=cloud.test'`)).stdout)
    assert.ok(said.sub?.endsWith('/sandbox/' + sbx.sandboxId.replace(/^sb/, 'sb-')), JSON.stringify(said))
    const other = JSON.parse((await sbx.commands.run(`curl -sS -m 30 'http://${at}/?audience=other.test'`)).stdout)
    assert.match(other.error, /audience/)
    assert.equal((await sbx.commands.run('env; cat /proc/self/environ')).stdout.includes('eyJ'), false)
  }, opts)
}, '2.51.0')

test('logs', () => box(async (sbx) => {
  await sbx.commands.run('true')
  const base = process.env.E2B_API_URL ?? 'https://api.' + process.env.E2B_DOMAIN
  const get = (path) => fetch(base + path, { headers: { 'X-API-Key': process.env.E2B_API_KEY } }).then((r) => r.json())
  const { logs } = await get(`/v2/sandboxes/${sbx.sandboxId}/logs?search=exec`)
  assert.ok(logs.length > 0 && logs.every((l) => l.message.includes('exec')), JSON.stringify(logs))
  // E2B's command line decodes each line.
  const old = await get(`/sandboxes/${sbx.sandboxId}/logs?limit=100`)
  assert.ok(old.logs.length > 0)
  for (const { line, timestamp } of old.logs) {
    const entry = JSON.parse(line)
    assert.ok(entry.level && entry.logger && entry.message && new Date(timestamp) > 0, line)
  }
}))

test('snapshots: names and tags', () => box(async (sbx) => {
  const name = 'snap-' + Math.random().toString(36).slice(2)
  await sbx.files.write('f', 'one')
  await sbx.createSnapshot({ name })
  await sbx.files.write('f', 'two')
  const tagged = await sbx.createSnapshot({ name: `${name}:v2` })
  assert.deepEqual(tagged.names, [`${name}:v2`])
  const listed = await Sandbox.listSnapshots({ name }).nextItems()
  assert.equal(listed.length, 2)
  for (const [template, want] of [[name, 'one'], [`${name}:v2`, 'two']]) {
    const copy = await Sandbox.create(template, { timeoutMs: 60_000 })
    assert.equal(await copy.files.read('f'), want)
    await copy.kill()
  }
  assert.equal(await Sandbox.deleteSnapshot(`${name}:v2`), true)
  assert.equal(await Sandbox.deleteSnapshot(name), true)
  assert.equal(await Sandbox.deleteSnapshot(name), false)
}), '2.45.0')
