import { assert, box, since, test, until } from './harness.mjs'

const server = `
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = ('%s|%s|%s' % (self.path, self.headers['Host'], self.headers.get('X-Access-Token'))).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()
`

// get requests a port of a sandbox, by its host name or, if the SDK uses one
// address for all, by headers.
async function get(sbx, port, path = '/', init = {}) {
  const base = process.env.E2B_SANDBOX_URL
  const headers = { ...init.headers }
  if (base) Object.assign(headers, { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': String(port) })
  const r = await fetch((base ?? 'https://' + sbx.getHost(port)) + path, { ...init, headers })
  return { status: r.status, text: await r.text() }
}

async function serve(sbx) {
  await sbx.files.write('server.py', server)
  await sbx.commands.run('python3 server.py', { background: true, timeoutMs: 0 })
  await until(() => get(sbx, 8000).then((r) => r.status === 200), 'the server answers')
}

test('a server on loopback', () => box((a) => box(async (b) => {
  await serve(a)
  const r = await get(a, 8000, '/a%2Fb?x=1', { headers: { 'X-Access-Token': 'not for you' } })
  const host = process.env.E2B_SANDBOX_URL ? 'localhost:8000' : a.getHost(8000)
  assert.equal(r.text, `/a%2Fb?x=1|${host}|None`)
  const body = 'x'.repeat(1_000_000)
  assert.equal((await get(a, 8000, '/', { method: 'POST', body })).text, body)
  const closed = await get(a, 8001)
  assert.equal(closed.status, 502)
  assert.equal(JSON.parse(closed.text).port, 8001)
  assert.equal((await get(b, 8000)).status, 502)
  await b.kill()
  const gone = JSON.parse((await get(b, 8000)).text)
  assert.deepEqual([gone.code, gone.message], [502, 'The sandbox was not found'])
})))

test('ports that want a token', async () => {
  await box(async (sbx) => {
    await sbx.files.write('server.py', server)
    await sbx.commands.run('python3 server.py', { background: true, timeoutMs: 0 })
    const headers = { 'e2b-traffic-access-token': sbx.trafficAccessToken }
    await until(() => get(sbx, 8000, '/', { headers }).then((r) => r.status === 200), 'the server answers')
    assert.equal((await get(sbx, 8000, '/', { headers })).text.split('|')[1], 'masked:8000')
    assert.equal((await get(sbx, 8000)).status, 403)
    assert.equal((await get(sbx, 8000, '/', { headers: { 'e2b-traffic-access-token': 'x' } })).status, 403)
  }, { network: { allowPublicTraffic: false, maskRequestHost: 'masked:${PORT}' } })
}, '2.8.1')

test('ports that serve HTTPS are told', () => box(async (sbx) => {
  assert.deepEqual((await sbx.getInfo()).network.httpsPorts, [9443])
}, { network: { httpsPorts: [9443] } }), '2.51.0')
