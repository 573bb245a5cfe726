// Uses the CloudflareSandboxClient of @openai/agents-extensions with Atoll, and reports each case as a line of JSON.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { run, setTracingDisabled, UserError } from '@openai/agents-core'
import { Manifest, SandboxAgent, SandboxError } from '@openai/agents-core/sandbox'
import { ScriptedModel, assistantMessage, functionCall, modelResponder } from '@openai/agents-core/testing'
import { CloudflareSandboxClient } from '@openai/agents-extensions/sandbox/cloudflare'

const workerUrl = process.env.BRIDGE_URL
const cases = {}
setTracingDisabled(true)

const manifest = () =>
  new Manifest({
    entries: { 'app/main.py': { type: 'file', content: "print('hello')\n" }, 'notes.txt': { type: 'file', content: 'grüße\n' } },
    environment: { FOO: { value: "b a'r" } },
  })

async function session(body, options = {}) {
  const client = new CloudflareSandboxClient({ workerUrl, ...options })
  const s = await client.create(manifest())
  try {
    return await body(s, client)
  } finally {
    await s.shutdown()
    await s.delete()
    assert.equal(await s.running(), false)
  }
}

const text = (bytes) => new TextDecoder().decode(bytes)

cases.commands = () =>
  session(async (s) => {
    assert.equal(await s.running(), true)
    const out = await s.execCommand({ cmd: 'pwd; cat notes.txt; printf %s "$FOO"; echo err >&2; exit 3' })
    assert.match(out, /exited with code 3/)
    assert.match(out, /\/workspace\ngrüße\nb a'r\nerr$/)
    assert.match(await s.execCommand({ cmd: "printf '€%.0s' $(seq 30000) | wc -c" }), /90000/)
    assert.ok((await s.execCommand({ cmd: "printf '€%.0s' $(seq 30000)" })).endsWith('€'.repeat(30000)))
    const all = await Promise.all([1, 2, 3, 4].map((i) => s.execCommand({ cmd: `sleep 0.1; echo n${i}` })))
    all.forEach((o, i) => assert.match(o, new RegExp(`n${i + 1}$`)))
  })

cases.timeouts = () =>
  session(async (s) => await assert.rejects(s.execCommand({ cmd: 'sleep 300' }), /failed to execute|exec_timeout|too long/), { timeoutMs: 1000 })

cases.files = () =>
  session(async (s) => {
    assert.equal(text(await s.readFile({ path: 'app/main.py' })), "print('hello')\n")
    assert.equal(text(await s.readFile({ path: 'notes.txt', maxBytes: 2 })), 'gr')
    assert.equal(await s.pathExists('missing'), false)
    assert.equal(await s.directoryExists('app'), true)
    await assert.rejects(s.readFile({ path: 'missing' }), /not found/)
    await s.execCommand({ cmd: 'ln -s /etc/passwd outside' })
    await assert.rejects(s.readFile({ path: 'outside' }))
    const editor = s.createEditor()
    await editor.createFile({ type: 'create_file', path: 'd/e/ü b.txt', diff: '+one\n+two\n' })
    await editor.updateFile({ type: 'update_file', path: 'd/e/ü b.txt', diff: '@@\n one\n-two\n+2\n' })
    assert.equal(text(await s.readFile({ path: 'd/e/ü b.txt' })).trim(), 'one\n2')
    await editor.deleteFile({ type: 'delete_file', path: 'd/e/ü b.txt' })
    assert.equal(await s.pathExists('d/e/ü b.txt'), false)
  })

cases.terminals = () =>
  session(async (s) => {
    const done = await s.execCommand({ cmd: 'stty size; tty >/dev/null && echo yes; exit 4', tty: true, yieldTimeMs: 5000 })
    assert.match(done, /exited with code 4/)
    assert.match(done, /24 80\s+yes/)
    const asked = await s.execCommand({ cmd: "read x; echo got $x; exit 5", tty: true, yieldTimeMs: 300 })
    const sessionId = Number(/session ID (\d+)/.exec(asked)[1])
    const told = await s.writeStdin({ sessionId, chars: "it's\n", yieldTimeMs: 5000 })
    assert.match(told, /exited with code 5/)
    assert.match(told, /got it's/)
  })

cases.persistAndHydrate = async () => {
  let archive
  await session(async (s) => {
    await s.execCommand({ cmd: 'mkdir -p a/b; echo x > a/b/f; ln -s ../../notes.txt a/b/rel; ln -s /workspace/a/b/f abs; ln a/b/f hard; ln -s /usr/bin/env out; mkfifo pipe; mkdir ' + 'n'.repeat(200) })
    archive = await s.persistWorkspace()
  })
  await session(async (s) => {
    await s.hydrateWorkspace(archive)
    const out = await s.execCommand({ cmd: 'cat a/b/rel abs hard; test ! -e out && test -d n*n && echo all' })
    assert.match(out, /grüße\nx\nx\nall$/)
  })
}

cases.resume = () =>
  session(async (s, client) => {
    await s.execCommand({ cmd: 'echo kept > kept.txt' })
    const again = await client.resume(s.state)
    assert.match(await again.execCommand({ cmd: 'cat kept.txt' }), /kept$/)
  })

const outputs = (model) =>
  Object.fromEntries(
    model.calls
      .at(-1)
      .request.input.filter((i) => i.type === 'function_call_result' || i.type === 'apply_patch_call_output')
      .map((i) => [i.callId, typeof i.output === 'string' ? i.output : (i.output?.text ?? JSON.stringify(i.output))]),
  )

cases.anAgentWorks = async () => {
  const patch = (callId, operation) => ({ type: 'apply_patch_call', id: callId, callId, status: 'completed', operation })
  const model = new ScriptedModel([
    [functionCall('exec_command', { cmd: 'python3 app/main.py && ls' }, { callId: 'run' })],
    [
      patch('patch', { type: 'update_file', path: 'app/main.py', diff: "@@\n-print('hello')\n+print('patched')\n" }),
      patch('add', { type: 'create_file', path: 'docs/new.md', diff: '+# New\n' }),
    ],
    [functionCall('exec_command', { cmd: 'python3 main.py\ncat ../docs/new.md\nexit 7', workdir: 'app' }, { callId: 'again' })],
    [functionCall('exec_command', { cmd: 'read x; echo got $x', tty: true, yield_time_ms: 300 }, { callId: 'ask' })],
    modelResponder((call) => {
      const asked = call.request.input.find((i) => i.callId === 'ask' && i.type === 'function_call_result')
      const id = Number(/session ID (\d+)/.exec(JSON.stringify(asked.output))[1])
      return [functionCall('write_stdin', { session_id: id, chars: 'answer\n', yield_time_ms: 3000 }, { callId: 'tell' })]
    }),
    [assistantMessage('done')],
  ])
  const agent = new SandboxAgent({ name: 'agent', model, instructions: 'work', defaultManifest: manifest() })
  const result = await run(agent, 'go', { sandbox: { client: new CloudflareSandboxClient({ workerUrl }) } })
  assert.equal(result.finalOutput, 'done')
  const said = outputs(model)
  assert.match(said.run, /hello/)
  assert.match(said.again, /patched\n# New/)
  assert.match(said.again, /code 7/)
  assert.match(said.tell, /got answer/)
}

// Makes a request fail, and reports whether one failed since the last call.
const fault = async (at, mode = '') => (await (await fetch(`${workerUrl}/fault?at=${at}&mode=${mode}`, { method: 'POST' })).text()) === 'true'

async function everything() {
  const client = new CloudflareSandboxClient({ workerUrl })
  // One file: if one of several fails, the client deletes the sandbox while it still writes the others, and these writes recreate it.
  const s = await client.create(new Manifest({ entries: { 'notes.txt': { type: 'file', content: 'x' } } }))
  try {
    await s.execCommand({ cmd: 'echo 1 >a' })
    await s.execCommand({ cmd: 'cat a', tty: true, yieldTimeMs: 2000 })
    await s.readFile({ path: 'a' })
    await s.createEditor().createFile({ type: 'create_file', path: 'b', diff: '+2\n' })
    await s.pathExists('b')
    await s.hydrateWorkspace(await s.persistWorkspace())
    await s.running()
  } finally {
    // Like the SDK, which continues when one of them fails.
    const [first, second] = [await s.shutdown().catch((e) => e), await s.delete().catch((e) => e)]
    if (first ?? second) throw first ?? second
  }
}

// Whichever call fails, the SDK returns one of its errors; the test checks that nothing is left.
cases.anyCallFails = async () => {
  let total = 0
  const seen = new Set()
  for (const mode of ['refused', 'dropped', 'lost']) {
    let at = 0
    for (let failed = true; failed; total++) {
      await fault(++at, mode)
      try {
        await everything()
      } catch (e) {
        if (!(e instanceof SandboxError || e instanceof UserError)) throw e // the latter if a WebSocket cannot be opened
        seen.add(e.constructor.name)
      } finally {
        failed = await fault(0)
      }
    }
    assert.ok(at > 15, String(at))
  }
  assert.ok(seen.size > 2, [...seen].join(' '))
  return `${total} runs: ${[...seen].sort().join(', ')}`
}

const chosen = process.argv.slice(2)
for (const [name, body] of Object.entries(cases)) {
  if (chosen.length > 0 && !chosen.includes(name)) continue
  const began = Date.now()
  let error = ''
  let note
  try {
    note = await body()
  } catch (e) {
    error = `${e?.stack ?? e} ${JSON.stringify(e?.details ?? {})}`
  }
  console.log(JSON.stringify({ name, ok: error === '', error, note: typeof note === 'string' ? note : '', ms: Date.now() - began }))
}
const { version } = JSON.parse(readFileSync(new URL('node_modules/@openai/agents-extensions/package.json', import.meta.url)))
console.log(JSON.stringify({ done: true, version }))
