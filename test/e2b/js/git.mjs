import { assert, box, sdk, test } from './harness.mjs'

test('git', () => box(async (sbx) => {
  const { git } = sbx
  await git.configureUser('A', 'a@example.test')
  assert.equal(await git.getConfig('user.name', { scope: 'global' }), 'A')
  await sbx.commands.run('git init --bare -b main /home/user/origin.git')
  await git.init('/home/user/repo', { initialBranch: 'main' })
  await git.setConfig('core.abbrev', '12', { path: '/home/user/repo', scope: 'local' })
  assert.equal(await git.getConfig('core.abbrev', { path: '/home/user/repo', scope: 'local' }), '12')
  await git.remoteAdd('/home/user/repo', 'origin', '/home/user/origin.git')
  assert.equal(await git.remoteGet('/home/user/repo', 'origin'), '/home/user/origin.git')
  await sbx.files.write('repo/f', 'one')
  const dirty = await git.status('/home/user/repo')
  assert.ok(dirty.fileStatus.some((f) => f.name === 'f'))
  await git.add('/home/user/repo')
  await git.commit('/home/user/repo', 'first', { authorName: 'A', authorEmail: 'a@example.test' })
  await git.push('/home/user/repo', { remote: 'origin', branch: 'main', setUpstream: true })
  await git.clone('/home/user/origin.git', { path: '/home/user/clone' })
  assert.equal(await sbx.files.read('clone/f'), 'one')
  await git.createBranch('/home/user/clone', 'side')
  await git.checkoutBranch('/home/user/clone', 'main')
  const branches = await git.branches('/home/user/clone')
  assert.equal(branches.currentBranch, 'main')
  assert.deepEqual([...branches.branches].sort(), ['main', 'side'])
  await git.deleteBranch('/home/user/clone', 'side', { force: true })
  await sbx.files.write('clone/f', 'changed')
  await git.restore('/home/user/clone', { paths: ['f'], worktree: true })
  assert.equal(await sbx.files.read('clone/f'), 'one')
  await sbx.files.write('clone/g', 'staged')
  await git.add('/home/user/clone', { files: ['g'] })
  await git.reset('/home/user/clone', { mode: 'mixed' })
  await git.pull('/home/user/clone', { remote: 'origin', branch: 'main' })
  await git.dangerouslyAuthenticate({ username: 'u', password: 'not-a-password', host: 'example.test' })
  assert.match(await sbx.files.read('.git-credentials'), /example\.test/)
}), '2.14.1')

test('what is only written down', async () => {
  const { Secret, Template } = sdk
  if (Secret) {
    assert.equal(Secret.fill('a'), '${e2b.secrets.a}')
    assert.equal(Secret.iamToken({ audience: 'x', tokenType: 'JWT-SVID' }).audience, 'x')
  }
  const all = [
    ['fromDebianImage', 'debian:'], ['fromUbuntuImage', 'ubuntu:'], ['fromFedoraImage', 'fedora:'], ['fromAlpineImage', 'alpine:'],
    ['fromArchImage', 'archlinux:'], ['fromPythonImage', 'python:'], ['fromNodeImage', 'node:'], ['fromBunImage', 'oven/bun:'],
  ]
  for (const [name, image] of all) {
    if (!Template()[name]) continue
    assert.ok(JSON.parse(await Template.toJSON(Template()[name](), false)).fromImage.startsWith(image), name)
  }
  const text = async (t) => JSON.parse(await Template.toJSON(t, false))
  assert.ok((await text(Template().fromDockerfile('FROM debian:12\nRUN echo x\n'))).steps.some((s) => s.args[0] === 'echo x'))
  if (Template().fromAWSRegistry) {
    const aws = await text(Template().fromAWSRegistry('r/i', { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' }))
    assert.equal(aws.fromImageRegistry.type, 'aws')
  }
  if (Template().fromGCPRegistry) assert.equal((await text(Template().fromGCPRegistry('r/i', { serviceAccountJSON: {} }))).fromImageRegistry.type, 'gcp')
  const t = Template().fromImage('x').copyItems?.([{ src: 'a', dest: '/a' }, { src: 'b', dest: '/b' }]) ?? Template().fromImage('x')
  t.bunInstall?.('left-pad')
  t.setReadyCmd?.(sdk.waitForTimeout(1000))
  assert.equal((await text(t)).fromImage, 'x')
  if (Template().addMcpServer) Template().fromTemplate('mcp-gateway').addMcpServer('exa')
  if (Template().betaDevContainerPrebuild) Template().fromTemplate('devcontainer').betaDevContainerPrebuild('/x').betaSetDevContainerStart('/x')
})
