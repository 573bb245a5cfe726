// The cases of the desktop SDK.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { assert, require, run, test, until } from './harness.mjs'
import { watchOwn } from './methods.mjs'

const { Sandbox } = require('@e2b/desktop')
const module = path.join(process.env.E2B_TEST_MODULES, 'node_modules/@e2b/desktop/package.json')
const { version } = JSON.parse(readFileSync(module))
watchOwn(Sandbox, path.join(path.dirname(module), 'dist/index.d.ts'))

async function desktop(fn, opts = {}) {
  const sbx = await Sandbox.create({ timeoutMs: 120_000, ...opts })
  try {
    return await fn(sbx)
  } finally {
    await sbx.kill()
  }
}

const dimensions = (png) => {
  const b = Buffer.from(png)
  assert.equal(b.subarray(1, 4).toString(), 'PNG')
  return [b.readUInt32BE(16), b.readUInt32BE(20)]
}

// windows waits for the windows of an application.
const windows = (sbx, name) => until(() => sbx.getApplicationWindows(name).catch(() => undefined), `a window of ${name}`)

// terminal opens a terminal that runs a command, and gives it the focus.
async function terminal(sbx, command) {
  await sbx.commands.run(`xterm -geometry 60x12+100+100 -e sh -c '${command}'`, { background: true, timeoutMs: 0 })
  const [window] = await windows(sbx, 'xterm')
  await sbx.leftClick(300, 200)
  await until(async () => (await sbx.getCurrentWindowId()) === window, 'the terminal has the focus')
  return window
}

const text = (sbx, file, want) => until(async () => (await sbx.files.exists(file)) && (await sbx.files.read(file)) === want, `${file} with ${JSON.stringify(want)}`)

test('desktop: sizes and screenshots', () => desktop(async (sbx) => {
  assert.deepEqual(await sbx.getScreenSize(), { width: 800, height: 600 })
  assert.deepEqual(dimensions(await sbx.screenshot()), [800, 600])
  assert.deepEqual(dimensions(await (await sbx.screenshot('blob')).arrayBuffer()), [800, 600])
  const parts = []
  for await (const part of await sbx.screenshot('stream')) parts.push(part)
  assert.deepEqual(dimensions(Buffer.concat(parts)), [800, 600])
  assert.equal(await sbx.waitAndVerify('true', (r) => r.exitCode === 0), true)
  await sbx.wait(10)
}, { resolution: [800, 600] }))

test('desktop: mouse', () => desktop(async (sbx) => {
  assert.deepEqual(await sbx.getScreenSize(), { width: 1024, height: 768 })
  await sbx.moveMouse(120, 140)
  assert.deepEqual(await sbx.getCursorPosition(), { x: 120, y: 140 })
  await sbx.commands.run('xev -geometry 400x300+200+200 >/tmp/events', { background: true, timeoutMs: 0 })
  await until(async () => (await sbx.files.exists('/tmp/events')) && /MapNotify/.test(await sbx.files.read('/tmp/events')), 'a window')
  await sbx.moveMouse(400, 350)
  const pressed = async (button, n) => until(async () => {
    const events = (await sbx.files.read('/tmp/events')).split('\n\n').filter((e) => e.startsWith('ButtonPress') && e.includes(`button ${button}`))
    return events.length >= n
  }, `${n} presses of the button ${button}`)
  await sbx.leftClick(400, 350)
  await pressed(1, 1)
  await sbx.doubleClick(400, 350)
  await pressed(1, 3)
  await sbx.rightClick(400, 350)
  await pressed(3, 1)
  await sbx.middleClick(400, 350)
  await pressed(2, 1)
  await sbx.scroll('up', 2)
  await pressed(4, 2)
  await sbx.scroll('down', 3)
  await pressed(5, 3)
  await sbx.mousePress('left')
  await sbx.mouseRelease('left')
  await pressed(1, 4)
  await sbx.drag([350, 300], [420, 380])
  await pressed(1, 5)
  assert.deepEqual(await sbx.getCursorPosition(), { x: 420, y: 380 })
}))

test('desktop: keyboard and windows', () => desktop(async (sbx) => {
  const window = await terminal(sbx, 'cat >/tmp/typed')
  assert.match(await sbx.getWindowTitle(window), /\S/)
  await sbx.write("It's \"typed\" & longer than 25 characters: $HOME; ~")
  await sbx.press('enter')
  await sbx.press(['ctrl', 'd'])
  await text(sbx, '/tmp/typed', "It's \"typed\" & longer than 25 characters: $HOME; ~\n")
}))

test('desktop: launch and open', () => desktop(async (sbx) => {
  await sbx.launch('org.xfce.mousepad')
  await windows(sbx, 'mousepad')
  await sbx.files.write('/tmp/page.html', '<title>a page</title><h1>Hello</h1>')
  await sbx.open('/tmp/page.html')
  const titles = async () => {
    for (const w of await sbx.getApplicationWindows('chromium').catch(() => [])) if (/a page/.test(await sbx.getWindowTitle(w).catch(() => ''))) return true
  }
  await until(titles, 'the page')
}))

// page requests a port of a sandbox as a browser does.
const page = (sbx, name, headers = {}) => fetch(`${process.env.E2B_SANDBOX_URL ?? 'https://' + sbx.getHost(6080)}/${name}`, {
  headers: { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '6080', ...headers },
})

// security returns the types of security that the VNC server behind noVNC offers.
async function security(sbx) {
  const address = new URL(process.env.E2B_SANDBOX_URL)
  const { request } = await import('node:http')
  return new Promise((done, failed) => {
    const r = request({
      host: address.hostname, port: address.port, path: '/websockify',
      headers: {
        Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13', 'Sec-WebSocket-Key': 'dGhlIHNhbXBsZSBub25jZQ==',
        'Sec-WebSocket-Protocol': 'binary', 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '6080',
      },
    })
    r.on('error', failed)
    r.on('response', (a) => failed(new Error(`no WebSocket: ${a.statusCode}`)))
    r.on('upgrade', (_, socket, head) => {
      let all = head
      let greeted = false
      const look = () => {
        for (;;) { // frames of at most 125 bytes
          if (all.length < 2 || all.length < 2 + all[1]) return
          const data = all.subarray(2, 2 + all[1])
          all = all.subarray(2 + all[1])
          if (!greeted) {
            greeted = true
            const masked = Buffer.concat([Buffer.from([0x82, 0x80 | data.length, 0, 0, 0, 0]), data])
            socket.write(masked)
          } else {
            socket.destroy()
            return done([...data.subarray(1)])
          }
        }
      }
      socket.on('data', (d) => { all = Buffer.concat([all, d]); look() })
      socket.on('error', failed)
      look()
    })
    r.end()
  })
}

test('desktop: streams', () => desktop(async (sbx) => {
  await sbx.stream.start()
  const url = new URL(sbx.stream.getUrl({ viewOnly: true }))
  assert.equal(url.hostname, sbx.getHost(6080).split(':')[0])
  assert.deepEqual([url.pathname, url.searchParams.get('view_only'), url.searchParams.get('autoconnect')], ['/vnc.html', 'true', 'true'])
  assert.throws(() => sbx.stream.getAuthKey())
  assert.match(await (await page(sbx, 'vnc.html')).text(), /noVNC/)
  assert.deepEqual(await security(sbx), [1]) // none
  await assert.rejects(sbx.stream.start(), /already running/)
  await sbx.stream.stop()
  await until(() => page(sbx, 'vnc.html').then((r) => r.status !== 200), 'the end of the stream')
}))

test('desktop: a stream with a password, of one window', () => desktop(async (sbx) => {
  const windowId = await terminal(sbx, 'cat')
  await sbx.stream.start({ requireAuth: true, windowId })
  const authKey = sbx.stream.getAuthKey()
  assert.match(authKey, /^[A-Za-z0-9]{16}$/)
  assert.equal(new URL(sbx.stream.getUrl({ authKey })).searchParams.get('password'), authKey)
  assert.deepEqual(await security(sbx), [2]) // of VNC
  await sbx.stream.stop()
}))

await run(version)
