import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { Sandbox, assert, rejects, sdk, since, test } from './harness.mjs'
import { learn } from './methods.mjs'

const { Template } = sdk
const unique = (name) => `${name}-${Math.random().toString(36).slice(2, 8)}`

// context creates a directory with files to copy.
function context() {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'atoll-e2b-'))
  fs.mkdirSync(path.join(dir, 'app/sub'), { recursive: true })
  fs.writeFileSync(path.join(dir, 'app/main.txt'), 'main')
  fs.writeFileSync(path.join(dir, 'app/sub/deep.txt'), 'deep')
  fs.writeFileSync(path.join(dir, 'one.txt'), 'one')
  fs.writeFileSync(path.join(dir, 'two.log'), 'two')
  return dir
}

const build = (template, name, opts) =>
  since('2.9.0') ? Template.build(template, name, opts) : Template.build(template, { alias: name, cpuCount: 1, memoryMB: 1024, ...opts })
const api = (method, path, body) =>
  fetch(`${process.env.E2B_API_URL ?? 'https://api.' + process.env.E2B_DOMAIN}${path}`, {
    method, body: body && JSON.stringify(body), headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' },
  })
const remove = async (name) => {
  const r = await api('DELETE', `/templates/${name}`)
  assert.ok(r.status === 204 || r.status === 404, `${r.status}`)
}
// publish is what `e2b template publish` sends; the SDK has no method for it.
const publish = (name, on) => api('PATCH', `/v2/templates/${name}`, { public: on })

test('a public template, and another tenant', async () => {
  const name = unique('public')
  const rival = { apiKey: process.env.E2B_TEST_RIVAL }
  const full = `default/${name}`
  try {
    await build(Template().fromBaseImage().runCmd('echo shared > /home/user/shared').setStartCmd('sleep 3600', 'true'), name)
    await rejects(Sandbox.create(full, { ...rival, timeoutMs: 60_000 }), 'NotFoundError', 'SandboxError')
    assert.deepEqual((await (await publish(name, true)).json()).names, [full])
    const sbx = await Sandbox.create(full, { ...rival, timeoutMs: 60_000 })
    try {
      assert.equal(await sbx.files.read('shared'), 'shared\n')
      assert.match((await sbx.commands.run('ps ax -o args || cat /proc/*/cmdline | tr "\\0" " "')).stdout, /sleep 3600/)
      if (since('2.15.0')) {
        assert.equal(await Template.exists(full, rival), true)
        assert.equal(await Template.exists(name, rival), false)
        await Template.build(Template().fromTemplate(full).runCmd('cat /home/user/shared > /home/user/copy'), name, rival)
        const own = await Sandbox.create(name, { ...rival, timeoutMs: 60_000 })
        try {
          assert.equal(await own.files.read('copy'), 'shared\n')
        } finally {
          await own.kill()
        }
        await rejects(Template.assignTags(full, 'mine', rival), 'TemplateError', 'NotFoundError', 'SandboxError')
      }
      assert.equal((await publish(name, false)).status, 200)
      await rejects(Sandbox.create(full, { ...rival, timeoutMs: 60_000 }), 'NotFoundError', 'SandboxError')
      assert.equal(await sbx.files.read('shared'), 'shared\n')
    } finally {
      await sbx.kill()
    }
  } finally {
    await remove(name)
  }
}, '2.9.0')

test('copy: several files, and links as links', async () => {
  const name = 'e2e-copy-' + Math.random().toString(36).slice(2)
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'copy-'))
  try {
    fs.mkdirSync(dir + '/folder/sub', { recursive: true })
    for (const f of ['one', 'two', 'sub/three']) fs.writeFileSync(`${dir}/folder/${f}`, f + '\n')
    fs.symlinkSync('one', dir + '/folder/near')
    fs.symlinkSync('/etc/hostname', dir + '/folder/far')
    await build(Template({ fileContextPath: dir }).fromBaseImage().copy('folder/*', 'folder').copy('folder/far', 'link'), name)
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    try {
      const { stdout } = await sbx.commands.run('cd /home/user; find folder link | sort; readlink folder/near folder/far link; cat folder/one folder/sub/three')
      assert.equal(stdout, 'folder\nfolder/far\nfolder/near\nfolder/one\nfolder/sub\nfolder/sub/three\nfolder/two\nlink\none\n/etc/hostname\n/etc/hostname\none\nsub/three\n')
    } finally {
      await sbx.kill()
    }
  } finally {
    await remove(name)
    fs.rmSync(dir, { recursive: true })
  }
}, '2.15.0')

test('a user that the image does not have', async () => {
  const name = 'e2e-user-' + Math.random().toString(36).slice(2)
  if (since('2.6.3')) {
    const e = await rejects(build(Template().fromBaseImage().runCmd('true', { user: 'nobody-here' }), name), 'BuildError')
    assert.match(e.message, /invalid username: 'nobody-here'/)
  }
  const e = await rejects(build(Template().fromBaseImage().setUser('Nobody-Here').runCmd('true'), name), 'BuildError')
  assert.match(e.message, /invalid username: 'Nobody-Here'/)
})

// setUser makes a user that the image lacks, and no user that an earlier step made.
test('setUser makes the user', async () => {
  const name = 'e2e-made-' + Math.random().toString(36).slice(2)
  try {
    await build(Template().fromBaseImage()
      .setUser('app').runCmd('id -un > /home/app/who')
      .setUser('root').runCmd('echo "own:x:1500:1500::/srv:/bin/sh" >> /etc/passwd')
      .setUser('own').setUser('app').setWorkdir('/home/app'), name)
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    try {
      assert.equal((await sbx.commands.run('id -un; pwd; cat who; echo ~own; grep -c ^own: /etc/passwd')).stdout, 'app\n/home/app\napp\n/srv\n1\n')
      assert.equal((await sbx.files.write('here', 'x')).path, '/home/app/here')
      assert.equal((await sbx.files.getInfo('here')).owner, 'app')
    } finally {
      await sbx.kill()
    }
  } finally {
    await remove(name)
  }
}, '2.6.3')

// They apply to commands without a user or directory, and to later steps.
test('user and directory of a template', async () => {
  const name = 'e2e-defaults-' + Math.random().toString(36).slice(2)
  const child = name + '-child'
  try {
    await build(Template().fromBaseImage().setUser('root').setWorkdir('/srv').runCmd('id -un > who; pwd >> who'), name)
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    try {
      assert.equal((await sbx.commands.run('id -un; pwd; cat /srv/who')).stdout, 'root\n/srv\nroot\n/srv\n')
      assert.equal((await sbx.commands.run('id -un; pwd', { user: 'user' })).stdout, 'user\n/srv\n')
      assert.equal((await sbx.files.write('here', 'x')).path, '/srv/here')
      assert.equal((await sbx.files.getInfo('/srv/here')).owner, 'root')
      let said = ''
      const pty = await sbx.pty.create({ cols: 80, rows: 24, onData: (d) => { said += new TextDecoder().decode(d) } })
      await sbx.pty.sendInput(pty.pid, new TextEncoder().encode('echo "<$(id -un)$PWD>"; exit\n'))
      await pty.wait()
      assert.ok(said.includes('<root/srv>'), said)
    } finally {
      await sbx.kill()
    }
    await build(Template().fromTemplate(name).runCmd('id -un > /srv/child; pwd >> /srv/child'), child)
    const two = await Sandbox.create(child, { timeoutMs: 60_000 })
    try {
      assert.equal((await two.commands.run('cat child')).stdout, 'root\n/srv\n')
    } finally {
      await two.kill()
    }
  } finally {
    await remove(child)
    await remove(name)
  }
}, '2.15.0')

test('a template: files, commands, variables, users', async () => {
  const name = unique('tools')
  const dir = context()
  // Old SDKs read directories like files.
  const app = (t) => since('2.6.3') ? t.copy('app', '/home/user/app') :
    t.copy('app/main.txt', '/home/user/app/main.txt').copy('app/sub/deep.txt', '/home/user/app/sub/deep.txt')
  const template = app(Template({ fileContextPath: dir, fileIgnorePatterns: ['*.log'] })
    .fromBaseImage()
    .setEnvs({ GREETING: 'hello there', EMPTY: '' }))
    .copy('one.txt', '/home/user/one.txt', { user: 'root', mode: 0o600 })
    .setWorkdir('/home/user/app')
    .runCmd('pwd > /tmp/where; id -un > /tmp/who; echo "$GREETING" > /tmp/said; echo to the log', { user: 'root' })
    .runCmd(['echo first > /tmp/list', 'id -un >> /tmp/list', 'stat -c %U main.txt >> /tmp/list'])
  const logs = []
  try {
    const told = []
    await build(template, name, { onBuildLogs: (e) => { logs.push(e.message); told.push(`${learn(e)}`) } })
    assert.ok(told.some((l) => /^\[.*to the log/.test(l)), JSON.stringify(told))
    assert.ok(logs.some((l) => l.includes('to the log')), JSON.stringify(logs))
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    try {
      assert.equal((await sbx.getInfo()).templateId, name)
      const { stdout } = await sbx.commands.run('cat /home/user/app/main.txt /home/user/app/sub/deep.txt; echo; cat /tmp/where /tmp/who /tmp/said /tmp/list; echo "$GREETING"; ls /home/user')
      assert.equal(stdout, 'maindeep\n/home/user/app\nroot\nhello there\nfirst\nuser\nuser\nhello there\napp\none.txt\n')
      assert.equal((await sbx.commands.run('stat -c "%U %a" /home/user/one.txt')).stdout, 'root 600\n')
    } finally {
      await sbx.kill()
    }
    const again = []
    await build(template, unique(name), { onBuildLogs: (e) => again.push(e.message) }).then((b) => remove(b?.name ?? b?.alias))
    assert.ok(again.some((l) => l.includes('CACHED')), JSON.stringify(again))
  } finally {
    await remove(name)
    fs.rmSync(dir, { recursive: true })
  }
}, '2.0.0')

test('a template of a template, and one that fails', async () => {
  const name = unique('parent')
  await build(Template().fromBaseImage().runCmd('echo parent > /tmp/parent'), name)
  try {
    const child = unique('child')
    await build(Template().fromTemplate(name).runCmd('cat /tmp/parent > /tmp/child'), child)
    const sbx = await Sandbox.create(child, { timeoutMs: 60_000 })
    assert.equal((await sbx.commands.run('cat /tmp/child')).stdout, 'parent\n')
    await sbx.kill()
    await remove(child)
    const e = await rejects(build(Template().fromTemplate(name).runCmd('echo no >&2; exit 3'), unique('bad')), 'BuildError')
    assert.match(e.message, /code 3/)
    await rejects(build(Template().fromTemplate('no-such-template').runCmd('true'), unique('bad')), 'BuildError')
  } finally {
    await remove(name)
  }
}, '2.0.0')

test('a template that starts something', async () => {
  const name = unique('server')
  const template = Template().fromBaseImage().runCmd('echo served > /home/user/page')
    .setStartCmd('sleep 0.3; cat /proc/sys/kernel/random/uuid > /tmp/once; cd /home/user && python3 -m http.server 8000 --bind 127.0.0.1', sdk.waitForPort(8000))
  const snapshots = since('2.14.0') && (await Sandbox.listSnapshots().nextItems()).length
  await build(template, name)
  const once = []
  try {
    for (let i = 0; i < 2; i++) {
      const sbx = await Sandbox.create(name, { timeoutMs: 60_000, envs: { MINE: `${i}` } })
      once.push((await sbx.commands.run('cat /tmp/once')).stdout)
      assert.equal((await sbx.commands.run('echo $MINE $(id -un) $(pwd)')).stdout, `${i} user /home/user\n`)
      await sbx.kill()
    }
    assert.ok(once[0].length > 30 && once[0] === once[1], `it started more than once: ${once}`)
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    const page = 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:8000/page").read().decode())'
    assert.equal((await sbx.commands.run(`python3 -c '${page}'`)).stdout, 'served\n\n')
    if (since('2.14.0')) assert.equal((await Sandbox.listSnapshots().nextItems()).length, snapshots)
    assert.ok((await sbx.commands.list()).some((p) => p.args.at(-1).includes('http.server')))
    await sbx.kill()
  } finally {
    await remove(name)
  }
}, '2.0.0')

test('builds in the background, as old SDKs do', async () => {
  const name = unique('old')
  const template = Template().fromBaseImage().runCmd('true')
  const info = await (since('2.9.0') ? Template.buildInBackground(template, name) : Template.buildInBackground(template, { alias: name, cpuCount: 1, memoryMB: 1024 }))
  let status
  do status = await Template.getBuildStatus(info, { logsOffset: 0 }); while (status.status === 'building' || status.status === 'waiting')
  assert.equal(status.status, 'ready')
  await remove(name)
}, '2.6.3')

test('builds in the background, status, names and tags', async () => {
  const name = unique('tagged')
  const info = await Template.buildInBackground(Template().fromBaseImage().runCmd(`for i in $(seq 250); do echo line $i; done # ${name}`), `${name}:v1`)
  try {
    let seen = 0
    let status
    do {
      status = await Template.getBuildStatus(info, { logsOffset: seen })
      assert.ok(status.logEntries.length <= 100)
      seen += status.logEntries.length
    } while (status.status === 'building' || status.status === 'waiting' || status.logEntries.length > 0)
    assert.equal(status.status, 'ready')
    assert.ok(seen >= 250, `${seen} lines`)
    assert.equal(await Template.exists(name), true)
    assert.equal(await Template.aliasExists(name), true)
    assert.equal(await Template.exists(name + '-not'), false)
    const tagged = await Template.assignTags(`${name}:v1`, ['stable', 'v2'])
    assert.deepEqual(tagged.tags, ['stable', 'v2'])
    assert.equal(tagged.buildId, info.buildId)
    const tags = await Template.getTags(name)
    assert.deepEqual(tags.map((t) => t.tag).sort(), ['stable', 'v1', 'v2'])
    assert.ok(tags.every((t) => t.buildId === info.buildId && t.createdAt instanceof Date))
    await Template.removeTags(name, 'v2')
    assert.equal((await Template.getTags(name)).length, 2)
    const sbx = await Sandbox.create(`${name}:stable`, { timeoutMs: 60_000 })
    await sbx.kill()
    await rejects(Sandbox.create(`${name}:v2`), 'NotFoundError', 'SandboxError')
    await rejects(Template.assignTags(`${name}:gone`, 'x'), 'TemplateError', 'NotFoundError')
  } finally {
    await remove(name)
  }
  assert.equal(await Template.exists(name), false)
  await rejects(Template.getTags(name), 'TemplateError', 'NotFoundError')
}, '2.15.0')

test('an image of a registry that wants a password', async () => {
  const name = unique('guarded')
  const { E2B_TEST_IMAGE: image, E2B_TEST_USER: username, E2B_TEST_PASSWORD: password } = process.env
  const read = async () => {
    const sbx = await Sandbox.create(name, { timeoutMs: 60_000 })
    try {
      return await sbx.files.read('/home/user/content')
    } finally {
      await sbx.kill()
    }
  }
  try {
    await rejects(build(Template().fromImage(image, { username, password: 'not ' + password }), name), 'BuildError', 'TemplateError')
    await rejects(build(Template().fromImage(image), name), 'BuildError', 'TemplateError')
    await build(Template().fromImage(image, { username, password }), name)
    assert.equal(await read(), 'guarded')
    await rejects(build(Template().fromImage(image), name), 'BuildError', 'TemplateError') // a fetched image is not available without a login
    const refused = await publish(name, true)
    assert.equal(refused.status, 403)
    assert.match((await refused.json()).message, /needs a password/)
    try {
      await build(Template().fromTemplate(name).setEnvs({ A: 'b' }), name + '-child') // the image has no shell
      assert.equal((await publish(name + '-child', true)).status, 403)
    } finally {
      await remove(name + '-child')
    }
    const serviceAccountJSON = { type: 'service_account', private_key: password }
    await build(Template().fromGCPRegistry(image, { serviceAccountJSON }), name)
    assert.equal(await read(), 'guarded')
    const aws = (secretAccessKey) => Template().fromAWSRegistry(image, { accessKeyId: username, secretAccessKey, region: 'eu-west-1' })
    await rejects(build(aws('not ' + password), name), 'BuildError', 'TemplateError')
    await build(aws(password), name)
    assert.equal(await read(), 'guarded')
  } finally {
    await remove(name)
  }
}, '2.15.0')

test('a gateway of MCP that a template brings', async () => {
  const name = unique('mcp')
  const dir = context()
  fs.writeFileSync(path.join(dir, 'mcp-gateway'), '#!/bin/sh\nmkdir -p /etc/mcp-gateway && printf %s "$GATEWAY_ACCESS_TOKEN" >/etc/mcp-gateway/.token && printf %s "$2" >/etc/mcp-gateway/config\n')
  fs.writeFileSync(path.join(dir, 'mcp.sh'), 'PATH=/home/user/mcp:$PATH\n') // in the image host, /usr belongs to the machine
  const mcp = { exa: { apiKey: 'one' } }
  try {
    await build(Template({ fileContextPath: dir }).fromBaseImage().copy('mcp-gateway', '/home/user/mcp/mcp-gateway', { user: 'root', mode: 0o755 })
      .copy('mcp.sh', '/root/.bash_profile', { user: 'root', mode: 0o644 }), name)
    const sbx = await Sandbox.create(name, { mcp, timeoutMs: 60_000 })
    try {
      assert.deepEqual(JSON.parse(await sbx.files.read('/etc/mcp-gateway/config', { user: 'root' })), mcp)
      const token = await sbx.getMcpToken()
      assert.ok(token.length > 20)
      assert.equal(await (await Sandbox.connect(sbx.sandboxId)).getMcpToken(), token)
    } finally {
      await sbx.kill()
    }
    const metadata = { case: name }
    await rejects(Sandbox.create('base', { mcp, metadata, timeoutMs: 60_000 }), 'SandboxError') // the image lacks the program
    for (const left of await Sandbox.list({ query: { metadata } }).nextItems()) await Sandbox.kill(left.sandboxId) // old SDKs leave it behind
    await rejects(Sandbox.create({ mcp }), 'NotFoundError', 'SandboxError') // there is no template mcp-gateway
  } finally {
    await remove(name)
    fs.rmSync(dir, { recursive: true })
  }
}, '2.15.0')

test('a template is written out', async () => {
  const template = Template()
    .fromImage('debian:12').aptInstall(['git', 'curl']).pipInstall('six').npmInstall('left-pad', { g: true })
    .makeDir('/a b').makeSymlink('/a b', '/c').rename('/c', '/d').remove('/d', { force: true }).gitClone('https://example.test/x.git', '/x', { depth: 1 })
    .setUser('user').setWorkdir('/x').setStartCmd('sleep 1', sdk.waitForPort(80)).skipCache()
  const text = JSON.parse(await Template.toJSON(template, false))
  assert.equal(text.fromImage, 'debian:12')
  assert.match(text.readyCmd, /80/)
  assert.match(Template.toDockerfile(template), /^FROM debian:12\n/)
}, '2.0.0')
