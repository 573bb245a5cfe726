import { Sandbox, assert, box, rejects, sdk, since, test, until } from './harness.mjs'

test('run: output, streams, exit codes', () => box(async (sbx) => {
  const seen = []
  const r = await sbx.commands.run('echo out; echo err >&2', { onStdout: (d) => seen.push(d), onStderr: (d) => seen.push(d) })
  assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out\n', 'err\n', 0])
  assert.deepEqual(seen.sort(), ['err\n', 'out\n'])
  const e = await rejects(sbx.commands.run('echo said; exit 7'), 'CommandExitError')
  assert.deepEqual([e.exitCode, e.stdout], [7, 'said\n'])
  const killed = await rejects(sbx.commands.run('kill -9 $$'), 'CommandExitError')
  assert.notEqual(killed.exitCode, 0)
}))

test('run: directory, user, environment, quoting', () => box(async (sbx) => {
  assert.equal((await sbx.commands.run('pwd; id -un')).stdout, '/home/user\nuser\n')
  assert.equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  assert.equal((await sbx.commands.run('id -un; echo $HOME', { user: 'root' })).stdout, 'root\n/root\n')
  assert.equal((await sbx.commands.run('printf %s "$A"', { envs: { A: `'"\n$é` } })).stdout, `'"\n$é`)
  await rejects(sbx.commands.run('true', { cwd: '/no/such/place' }), 'InvalidArgumentError', 'SandboxError')
  await rejects(sbx.commands.run('true', { user: 'nobody-here' }), 'AuthenticationError', 'SandboxError')
}))

// If setsid led its process group, it would fork and exit.
test('run: no command leads its process group', () => box(async (sbx) => {
  const e = await rejects(sbx.commands.run('setsid sh -c "exit 3"'), 'CommandExitError')
  assert.equal(e.exitCode, 3)
  const h = await sbx.commands.run('exec setsid sleep 600', { background: true })
  assert.equal(await h.kill(), true)
  await rejects(h.wait(), 'CommandExitError')
}))

// statx fills the basic fields, whatever the request.
test('stat tells what a file is', () => box(async (sbx) => {
  await sbx.files.write('one', '1')
  assert.equal((await sbx.commands.run('stat -c %F one; stat -c %s one')).stdout, 'regular file\n1\n')
}))

test('run: timeout', () => box(async (sbx) => {
  await rejects(sbx.commands.run('sleep 600', { timeoutMs: 1000 }), 'TimeoutError')
  await until(() => sbx.commands.list().then((l) => l.length === 0), 'it was killed')
}))

test('background: wait, list, kill, connect, disconnect', () => box(async (sbx) => {
  const h = await sbx.commands.run('sleep 600', { background: true })
  const listed = (await sbx.commands.list()).find((p) => p.pid === h.pid)
  assert.equal(listed.cmd, '/bin/bash')
  assert.deepEqual(listed.args, ['-l', '-c', 'sleep 600'])
  assert.equal(await h.kill(), true)
  await rejects(h.wait(), 'CommandExitError')
  assert.equal(await sbx.commands.kill(h.pid), false)

  const loop = await sbx.commands.run('while true; do echo tick; sleep 0.05; done', { background: true })
  await loop.disconnect()
  let ticks = 0
  const again = await sbx.commands.connect(loop.pid, { onStdout: () => ticks++ })
  await until(() => ticks > 2, 'output after connecting again')
  assert.equal(await sbx.commands.kill(loop.pid), true)
  await rejects(again.wait(), 'CommandExitError')
  await rejects(sbx.commands.connect(999999), 'NotFoundError', 'SandboxError')
}))

test('input', () => box(async (sbx) => {
  const h = await sbx.commands.run('head -n 2', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'one\n')
  await sbx.commands.sendStdin(h.pid, 'zwei é\n')
  assert.equal((await h.wait()).stdout, 'one\nzwei é\n')
  // Earlier versions left the command's input open.
  if (since('2.6.3')) assert.equal((await sbx.commands.run('cat')).stdout, '')
  await assert.rejects(sbx.commands.sendStdin(h.pid, 'late'))
}))

test('input ends', () => box(async (sbx) => {
  const h = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'text ')
  await sbx.commands.closeStdin(h.pid)
  await sbx.commands.closeStdin(h.pid).catch((e) => assert.ok(e instanceof sdk.NotFoundError, e))
  assert.equal((await h.wait()).stdout, 'text end\n')
}), '2.14.1')

test('input by the handle', () => box(async (sbx) => {
  const h = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
  await h.sendStdin('text ')
  await h.closeStdin()
  assert.equal((await h.wait()).stdout, 'text end\n')
}), '2.45.0')

test('much output arrives whole', () => box(async (sbx) => {
  const r = await sbx.commands.run('head -c 20000000 /dev/zero | tr "\\0" x; echo; echo end', { timeoutMs: 100_000 })
  assert.equal(r.stdout.length, 20_000_005)
  assert.ok(r.stdout.endsWith('x\nend\n'))
}))

test('many at once', () => box(async (sbx) => {
  const all = await Promise.all([...Array(20).keys()].map((i) => sbx.commands.run(`echo ${i}`)))
  assert.deepEqual(all.map((r) => r.stdout), [...Array(20).keys()].map((i) => `${i}\n`))
}))

test('processes in the background of a command are left alone by kill', () => box(async (sbx) => {
  const h = await sbx.commands.run('setsid sleep 600 & echo $!; wait', { background: true })
  await until(() => h.stdout.length > 0, 'the number')
  assert.equal(await h.kill(), true)
  await rejects(h.wait(), 'CommandExitError')
}))

test('two sandboxes know nothing of each other', () => box((a) => box(async (b) => {
  const h = await a.commands.run('sleep 600', { background: true })
  assert.equal(await Sandbox.kill('sb0000000000000'), false)
  await rejects(b.commands.connect(h.pid + 5000), 'NotFoundError', 'SandboxError')
  assert.equal((await b.commands.list()).length, 0)
})))
