import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { test } from 'node:test'

import * as atoll from '../src/index.js'
import { Daemon } from './daemon.js'

const daemon = await Daemon.start()
const client = await atoll.connect()
const box = await client.create({ name: 'shared' })
test.after(async () => {
  await box.destroy()
  await client.close()
  await daemon.stop()
})

/** Read until a text was seen. */
async function sees(terminal: atoll.Terminal, text: string): Promise<string> {
  let all = ''
  const output = terminal[Symbol.asyncIterator]()
  while (!all.includes(text)) {
    const next = await output.next()
    if (next.done) throw new Error(`it ended with ${all}`)
    all += next.value.toString()
  }
  return all
}

test('viewers share a terminal', async () => {
  const driving = await box.terminal({ size: { cols: 100, rows: 30 } })
  await driving.write('echo a$((40+2))b\n')
  await sees(driving, 'a42b')
  const watching = await box.terminal({ watch: true })
  assert.equal(watching.process, driving.process)
  await sees(watching, 'a42b') // at once
  await watching.write('echo c$((1+1))d\n')
  await driving.write('echo e$((1+2))f\n')
  assert.ok(!(await sees(watching, 'e3f')).includes('c2d'))
  const viewers = (await box.streams()).map((s) => [s.kind, s.mode, s.viewers])
  assert.deepEqual(viewers.sort(), [
    ['terminal', 'control', 1],
    ['terminal', 'view', 1],
  ])
  await box.revokeStream(watching.stream.id)
  await assert.rejects(sees(watching, 'never'), { name: 'UnauthorizedError' })
  await driving.write('exit 7\n')
  for await (const piece of driving) assert.ok(piece.length > 0)
  assert.equal((await driving.wait()).code, 7)
})

test('a terminal survives a lost connection', async () => {
  const way = new URL(daemon.host)
  const open = new Set<Socket>()
  const proxy = createServer((inside) => {
    const outside = connect(Number(way.port), way.hostname)
    for (const [a, b] of [
      [inside, outside],
      [outside, inside],
    ] as const) {
      open.add(a)
      a.on('error', () => {}).on('close', () => b.destroy())
      a.pipe(b)
    }
  }).listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  const host = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`
  const remote = await atoll.connect({ host, key: daemon.key })
  const terminal = await (await remote.get('shared')).terminal()
  const cutting = setInterval(() => {
    for (const socket of open) socket.destroy()
    open.clear()
  }, 150)
  await terminal.write("stty -echo; PS1=; echo rea''dy\n")
  for (let i = 0; i < 100; i++) await terminal.write(`echo line-${i}; sleep 0.01\n`)
  await terminal.write('exit 5\n')
  let all = ''
  for await (const piece of terminal) all += piece.toString()
  clearInterval(cutting)
  assert.equal((await terminal.wait()).code, 5)
  const lines = [...all.slice(all.indexOf('ready\r\n')).matchAll(/line-(\d+)\r\n/g)].map((l) => Number(l[1]))
  assert.deepEqual(lines, [...Array(100).keys()])
  await remote.close()
  proxy.close()
})
