// A server that answers the requests of bench.mjs at once and without doing
// anything: the limit of the SDK and the machine.
import http from 'node:http'

const large = Buffer.alloc(100_000_000, 'x')
const frame = (flags, message) => {
  const body = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(5)
  head[0] = flags
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}
const command = Buffer.concat([
  frame(0, { event: { start: { pid: 1 } } }),
  frame(0, { event: { end: { exitCode: 0, exited: true, status: 'exit status 0' } } }),
  frame(2, {}),
])
const box = { templateID: 'base', sandboxID: 'sb0', clientID: 'none', envdVersion: '0.5.7', envdAccessToken: 'x' }
const info = { ...box, startedAt: new Date(), endAt: new Date(), state: 'running', cpuCount: 1, memoryMB: 1, diskSizeMB: 1 }

const server = http.createServer((request, response) => {
  const answer = (status, type, body) => response.writeHead(status, { 'Content-Type': type, 'Content-Length': body.length }).end(body)
  const json = (status, value) => answer(status, 'application/json', Buffer.from(JSON.stringify(value)))
  request.resume().on('end', () => {
    const path = request.url.split('?')[0]
    if (path === '/v2/sandboxes') return json(201, box)
    if (path.startsWith('/process.')) return answer(200, 'application/connect+json', command)
    if (path === '/files' && request.method === 'POST') return json(200, [{ path: '/home/user/large', name: 'large', type: 'file' }])
    if (path === '/files') return answer(200, 'application/octet-stream', large)
    if (request.method === 'DELETE') return response.writeHead(204).end()
    return json(200, info)
  })
})
server.listen(0, '127.0.0.1', () => process.send(server.address().port))
