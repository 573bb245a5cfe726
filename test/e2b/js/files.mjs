import { assert, box, rejects, sdk, since, test, until } from './harness.mjs'

test('write and read in all forms', () => box(async (sbx) => {
  const w = await sbx.files.write('dir/deep/a.txt', 'hellö')
  assert.equal(w.path, '/home/user/dir/deep/a.txt')
  assert.equal(w.name, 'a.txt')
  assert.equal(await sbx.files.read('dir/deep/a.txt'), 'hellö')
  assert.equal(await sbx.files.read('/home/user/dir/deep/a.txt', { format: 'text' }), 'hellö')
  assert.deepEqual(Buffer.from(await sbx.files.read('dir/deep/a.txt', { format: 'bytes' })), Buffer.from('hellö'))
  assert.equal(await (await sbx.files.read('dir/deep/a.txt', { format: 'blob' })).text(), 'hellö')
  const chunks = []
  for await (const c of await sbx.files.read('dir/deep/a.txt', { format: 'stream' })) chunks.push(c)
  assert.equal(Buffer.concat(chunks).toString(), 'hellö')
  const bytes = new Uint8Array([0, 255, 10, 13, 0])
  await sbx.files.write('bytes', bytes.buffer)
  assert.deepEqual(await sbx.files.read('bytes', { format: 'bytes' }), bytes)
  await sbx.files.write('blob', new Blob(['from a blob']))
  assert.equal(await sbx.files.read('blob'), 'from a blob')
  await sbx.files.write('stream', new Blob(['from a stream']).stream())
  assert.equal(await sbx.files.read('stream'), 'from a stream')
  await sbx.files.write('empty', '')
  assert.equal(await sbx.files.read('empty'), '')
  await sbx.files.write('dir/deep/a.txt', 'short')
  assert.equal(await sbx.files.read('dir/deep/a.txt'), 'short')
  const many = await sbx.files.write([{ path: 'm/1', data: 'one' }, { path: '/tmp/m2', data: 'two' }])
  assert.deepEqual(many.map((f) => f.path), ['/home/user/m/1', '/tmp/m2'])
  assert.equal(await sbx.files.read('/tmp/m2'), 'two')
}))

// Generated files have size 0.
test('files without a size', () => box(async (sbx) => {
  for (const p of ['/proc/cpuinfo', '/proc/sys/kernel/hostname', '/sys/devices/system/cpu/online']) {
    const want = (await sbx.commands.run('cat ' + p)).stdout
    assert.ok(want.length > 0)
    assert.equal(await sbx.files.read(p), want)
    assert.equal(Buffer.from(await sbx.files.read(p, { format: 'bytes' })).toString(), want)
  }
}))

test('write many by name', () => box(async (sbx) => {
  const many = await sbx.files.writeFiles([{ path: 'm/1', data: 'one' }, { path: 'm/2', data: 'two' }])
  assert.deepEqual(many.map((f) => f.path), ['/home/user/m/1', '/home/user/m/2'])
}), '2.15.0')

test('who owns what is written', () => box(async (sbx) => {
  await sbx.files.write('mine', 'x')
  await sbx.files.write('/root/his', 'x', { user: 'root' })
  await sbx.files.makeDir('d/e')
  const { stdout } = await sbx.commands.run('stat -c "%U %a" /home/user/mine /root/his /home/user/d/e', { user: 'root' })
  assert.equal(stdout, 'user 644\nroot 644\nuser 755\n')
}))

test('what is wrong with files', () => box(async (sbx) => {
  await rejects(sbx.files.read('missing'), 'NotFoundError')
  await rejects(sbx.files.list('missing'), 'NotFoundError')
  await rejects(sbx.files.list('/etc/passwd'), 'InvalidArgumentError')
  await rejects(sbx.files.read('/tmp'), 'InvalidArgumentError', 'SandboxError')
  await rejects(sbx.files.write('/tmp', 'x'), 'InvalidArgumentError', 'SandboxError')
  await rejects(sbx.files.rename('missing', 'other'), 'NotFoundError')
  await rejects(sbx.files.read('x', { user: 'nobody-here' }), 'AuthenticationError', 'SandboxError')
  await sbx.files.remove('missing')
}))

test('list, exists, info, move, remove', () => box(async (sbx) => {
  assert.equal(await sbx.files.makeDir('top/in'), true)
  assert.equal(await sbx.files.makeDir('top/in'), false)
  await sbx.files.write('top/in/f', '12345')
  assert.equal(await sbx.files.exists('top/in/f'), true)
  assert.equal(await sbx.files.exists('top/in/g'), false)
  const one = await sbx.files.list('top')
  assert.deepEqual(one.map((e) => [e.name, e.type, e.path]), [['in', 'dir', '/home/user/top/in']])
  const deep = await sbx.files.list('top', { depth: 2 })
  assert.deepEqual(deep.map((e) => e.path), ['/home/user/top/in', '/home/user/top/in/f'])
  const moved = await sbx.files.rename('top/in/f', 'new/place/g')
  assert.equal(moved.path, '/home/user/new/place/g')
  assert.equal(await sbx.files.read('new/place/g'), '12345')
  await sbx.files.remove('top')
  assert.equal(await sbx.files.exists('top'), false)
}))

test('info of files and links', () => box(async (sbx) => {
  await sbx.files.write('f', '12345')
  await sbx.commands.run('chmod 640 f; ln -s f l; mkdir d; ln -s d ld; ln -s nowhere dangling')
  const f = await sbx.files.getInfo('f')
  assert.deepEqual([f.type, f.size, f.mode, f.permissions, f.owner, f.group], ['file', 5, 0o640, '-rw-r-----', 'user', 'user'])
  assert.ok(Math.abs(f.modifiedTime - Date.now()) < 600_000)
  const l = await sbx.files.getInfo('l')
  assert.deepEqual([l.type, l.path, l.symlinkTarget], ['file', '/home/user/l', '/home/user/f'])
  assert.equal((await sbx.files.getInfo('ld')).type, 'dir')
  const names = (await sbx.files.list('.')).map((e) => e.name)
  assert.ok(names.includes('l') && !names.includes('dangling'), names.join())
  assert.equal(await sbx.files.read('l'), '12345')
  await sbx.files.write('l', 'through')
  assert.equal(await sbx.files.read('f'), 'through')
}))

test('signed addresses', () => box(async (sbx) => {
  await sbx.files.write('signed.txt', 'for whoever has the address')
  const get = await sbx.downloadUrl('signed.txt')
  const r = await fetch(get)
  assert.equal(r.status, 200)
  assert.equal(await r.text(), 'for whoever has the address')
  const part = await fetch(get, { headers: { Range: 'bytes=4-11' } })
  assert.deepEqual([part.status, await part.text()], [206, 'whoever '])
  assert.ok((await fetch(get.replace('signed.txt', 'other.txt'))).status >= 401)
  assert.ok((await fetch(await sbx.downloadUrl('signed.txt', { useSignatureExpiration: -10 }))).status >= 401)
  assert.equal((await fetch(await sbx.downloadUrl('signed.txt', { useSignatureExpiration: 60 }))).status, 200)
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'ignored')
  const put = await fetch(await sbx.uploadUrl('up.txt'), { method: 'POST', body: form })
  assert.equal(put.status, 200)
  assert.equal(await sbx.files.read('up.txt'), 'uploaded')
}))

test('watch a directory', () => box(async (sbx) => {
  await sbx.files.makeDir('w/sub')
  const seen = []
  const h = await sbx.files.watchDir('w', (e) => seen.push(`${e.type} ${e.name}`))
  await sbx.files.write('w/f', 'x')
  await until(() => seen.some((s) => / f$/.test(s)), 'an event for the file')
  await sbx.commands.run('echo more >> w/f')
  await until(() => seen.includes('write f'), 'a write')
  await sbx.files.remove('w/f')
  await until(() => seen.includes('remove f'), 'a removal')
  await h.stop()
  await rejects(sbx.files.watchDir('missing', () => {}), 'NotFoundError')
}))

test('watch recursively', () => box(async (sbx) => {
  await sbx.files.makeDir('w/sub')
  const seen = []
  const h = await sbx.files.watchDir('w', (e) => seen.push(`${e.type} ${e.name}`), { recursive: true })
  await sbx.files.write('w/sub/f', 'x')
  await until(() => seen.includes('create sub/f'), 'an event below: ' + seen)
  await h.stop()
}))

// stat of coreutils reports the same for a directory.
test('sizes are those of stat', () => box(async (sbx) => {
  await sbx.files.makeDir('d/in')
  await sbx.files.write('d/f', '12345')
  await sbx.commands.run('ln -s f d/l; touch d/in/1 d/in/2')
  const names = ['d', 'd/f', 'd/in', 'd/l']
  const want = (await sbx.commands.run('stat -c %s ' + names.join(' '))).stdout.trim().split('\n').map(Number)
  assert.deepEqual(await Promise.all(names.map(async (n) => (await sbx.files.getInfo(n)).size)), want)
  const listed = (await sbx.files.list('d')).map((e) => [e.name, e.size])
  assert.deepEqual(listed, [['f', 5], ['in', want[2]], ['l', want[3]]])
}), '2.15.0')

test('to overwrite is to write', () => box(async (sbx) => {
  await sbx.files.write('w/f', 'a longer first')
  await sbx.commands.run('ln w/f hard; chmod 640 w/f')
  const seen = []
  const h = await sbx.files.watchDir('w', (e) => seen.push(`${e.type} ${e.name}`))
  await sbx.files.write('w/f', 'second')
  await sbx.files.write('w/g', 'new')
  await until(() => seen.includes('write g'), 'a write: ' + seen)
  assert.ok(seen.includes('write f') && !seen.includes('create f') && seen.includes('create g'), seen.join())
  assert.equal(await sbx.files.read('hard'), 'second')
  assert.equal((await sbx.commands.run('stat -c "%h %a" hard')).stdout, '2 640\n')
  await h.stop()
}))

test('metadata', () => box(async (sbx) => {
  const w = await sbx.files.write('m/f', 'x', { metadata: { Author: 'me', kind: 'a b' } })
  assert.deepEqual(w.metadata, { author: 'me', kind: 'a b' })
  assert.deepEqual((await sbx.files.getInfo('m/f')).metadata, { author: 'me', kind: 'a b' })
  assert.deepEqual((await sbx.files.list('m')).map((e) => e.metadata), [{ author: 'me', kind: 'a b' }])
  await sbx.commands.run('ln -s f m/l')
  assert.deepEqual((await sbx.files.getInfo('m/l')).metadata, { author: 'me', kind: 'a b' })
  // Their order is unspecified; in gVisor it changes from call to call.
  const attr = await sbx.commands.run(`python3 -c "import os; print(os.getxattr('m/f', 'user.e2b.author').decode(), sorted(os.listxattr('m/f')))"`)
  assert.equal(attr.stdout, "me ['user.e2b.author', 'user.e2b.kind']\n")
  await sbx.commands.run(`python3 -c "import os; os.setxattr('m/f', 'user.other', b'stays'); os.setxattr('m/f', 'user.e2b.shell', b'set')"`)
  assert.deepEqual((await sbx.files.getInfo('m/f')).metadata, { author: 'me', kind: 'a b', shell: 'set' })
  await sbx.files.rename('m/f', 'm/g')
  assert.equal((await sbx.files.getInfo('m/g')).metadata.author, 'me')
  await sbx.files.write('m/g', 'y', { metadata: { kind: 'other' } }) // replaces all metadata
  assert.deepEqual((await sbx.files.getInfo('m/g')).metadata, { kind: 'other' })
  await sbx.files.write('m/g', 'z')
  assert.equal((await sbx.files.getInfo('m/g')).metadata, undefined)
  assert.equal((await sbx.commands.run(`python3 -c "import os; print(os.listxattr('m/g'))"`)).stdout, "['user.other']\n")
  const both = await sbx.files.writeFiles([{ path: 'm/1', data: '1' }, { path: 'm/2', data: '2' }], { metadata: { k: 'v' } })
  assert.deepEqual(both.map((f) => f.metadata), [{ k: 'v' }, { k: 'v' }])
  await rejects(sbx.files.write('m/g', 'x', { metadata: { k: 'v'.repeat(5000) } }), 'InvalidArgumentError', 'SandboxError')
  await rejects(sbx.files.write('m/g', 'x', { metadata: { 'a key': 'v' } }), 'InvalidArgumentError', 'SandboxError')
}), '2.51.0')

test('watch with entries', () => box(async (sbx) => {
  await sbx.files.makeDir('w')
  const seen = []
  const h = await sbx.files.watchDir('w', (e) => seen.push(e), { includeEntry: true })
  await sbx.files.write('w/f', '12345', { metadata: { k: 'v' } })
  const e = await until(() => seen.find((e) => e.type === 'write' && e.name === 'f')?.entry, 'a write with an entry')
  assert.deepEqual([e.path, e.type, e.size, e.owner, e.metadata], ['/home/user/w/f', 'file', 5, 'user', { k: 'v' }])
  await sbx.files.remove('w/f')
  const gone = await until(() => seen.find((e) => e.type === 'remove'), 'a removal')
  assert.equal(gone.entry, undefined)
  await h.stop()
}), '2.51.0')

test('a large file', () => box(async (sbx) => {
  const data = Buffer.alloc(30_000_000, 'abcdefgh')
  await sbx.files.write('large', new Blob([data]))
  assert.equal((await sbx.files.read('large', { format: 'bytes' })).length, data.length)
  assert.equal((await sbx.commands.run('sha256sum < large')).stdout.slice(0, 64),
    (await import('node:crypto')).createHash('sha256').update(data).digest('hex'))
}))
