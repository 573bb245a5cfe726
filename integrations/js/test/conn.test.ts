import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import * as atoll from '../src/index.js'

/** A WebSocket frame of a server with up to 125 bytes. */
function frame(opcode: number, data: string): Buffer {
  return Buffer.concat([Buffer.of(0x80 | opcode, data.length), Buffer.from(data)])
}

/** A daemon that sends frames together with its answer to an upgrade, in one segment. */
async function eager(...frames: Buffer[]): Promise<Server> {
  const server = createServer((_request, answer) => {
    answer.setHeader('Content-Type', 'application/json').end(JSON.stringify({ id: 'sb-one', name: 'one', state: 'running' }))
  })
  server.on('upgrade', (request, socket) => {
    const accept = createHash('sha1').update(`${request.headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
    const head =
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
      `Sec-WebSocket-Accept: ${accept.digest('base64')}\r\n\r\n`
    socket.end(Buffer.concat([Buffer.from(head), ...frames]))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return server
}

async function at(server: Server, fn: (box: atoll.Sandbox) => Promise<void>): Promise<void> {
  try {
    await using client = new atoll.Client({ host: `http://127.0.0.1:${(server.address() as AddressInfo).port}` })
    await fn(await client.get('one'))
  } finally {
    server.closeAllConnections()
    server.close()
  }
}

test('messages that arrive together with the upgrade', async () => {
  const process = { id: 'p1', pid: 1, args: ['true'], running: true }
  const server = await eager(
    frame(1, JSON.stringify({ type: 'started', process })),
    frame(2, '\x01said'),
    frame(1, JSON.stringify({ type: 'exit', exit: { code: 3 } })),
    frame(1, JSON.stringify({ type: 'eof', channel: 1 })),
    frame(1, JSON.stringify({ type: 'eof', channel: 2 })),
  )
  await at(server, async (box) => {
    const p = await box.attach('p1')
    const said: string[] = []
    for await (const piece of p) said.push(piece.data.toString())
    assert.deepEqual([said.join(''), (await p.wait()).code], ['said', 3])
  })
})

test('bytes of a port that arrive together with the upgrade', async () => {
  const server = await eager(frame(2, 'banner'), frame(2, ''))
  await at(server, async (box) => {
    let text = ''
    for await (const piece of await box.dial(22)) text += piece
    assert.equal(text, 'banner')
  })
})
