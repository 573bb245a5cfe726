// The cases of the code interpreter's SDK.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { assert, rejects, require, run, since, test } from './harness.mjs'
import { watchOwn } from './methods.mjs'

const { Sandbox } = require('@e2b/code-interpreter')
const module = path.join(process.env.E2B_TEST_MODULES, 'node_modules/@e2b/code-interpreter/package.json')
const { version } = JSON.parse(readFileSync(module))
watchOwn(Sandbox, path.join(path.dirname(module), 'dist/index.d.ts'))
// Earlier versions sent no token when they listed contexts.
const sendsToken = since('2.3.0', version)

async function box(fn) {
  const sbx = await Sandbox.create({ timeoutMs: 120_000 })
  try {
    return await fn(sbx)
  } finally {
    await sbx.kill()
  }
}

test('code: results, output, state', () => box(async (sbx) => {
  const seen = []
  const first = await sbx.runCode('x = 20\nprint("out")\nimport sys\nprint("err", file=sys.stderr)\nx + 1', {
    onStdout: (m) => seen.push(m.line), onStderr: (m) => seen.push(m.line), onResult: (r) => seen.push(r.text),
  })
  assert.deepEqual([first.text, first.logs.stdout.join(''), first.logs.stderr.join(''), first.error], ['21', 'out\n', 'err\n', undefined])
  assert.deepEqual(seen.sort(), ['21', 'err\n', 'out\n'])
  const second = await sbx.runCode('x *= 2; x')
  assert.deepEqual([second.text, second.executionCount], ['40', 2])
  assert.equal((await sbx.runCode("'text'")).text, 'text')
  assert.equal((await sbx.runCode('x;')).results.length, 0)
  assert.equal((await sbx.runCode('import asyncio\nawait asyncio.sleep(0)\n7')).text, '7')
  assert.equal((await sbx.runCode('!echo from a program')).logs.stdout.join(''), 'from a program\n')
  assert.equal((await sbx.runCode('import os; os.environ["A"]', { envs: { A: "b'c" } })).text, "b'c")
  assert.equal((await sbx.runCode('os.environ.get("A")')).results.length, 0)
  const large = await sbx.runCode('print("z" * 3_000_000)')
  assert.equal(large.logs.stdout.join('').length, 3_000_001)
}))

test('code: indented as a whole', () => box(async (sbx) => {
  assert.equal((await sbx.runCode('\n    x = 1\n    if x:\n        x += 1\n    x + 1\n    ')).text, '3')
}))

test('code: errors', () => box(async (sbx) => {
  let told
  const { error } = await sbx.runCode('def f():\n    return 1 / 0\nf()', { onError: (e) => { told = e } })
  assert.equal(error.name, 'ZeroDivisionError')
  assert.equal(error.value, 'division by zero')
  assert.match(error.traceback, /line 2, in f/)
  assert.doesNotMatch(error.traceback, /kernel\.py/)
  assert.equal(told.name, 'ZeroDivisionError')
  assert.equal((await sbx.runCode('def broken(')).error.name, 'SyntaxError')
  assert.equal((await sbx.runCode('import os; os._exit(3)')).error.name, 'KernelDied')
  assert.equal((await sbx.runCode('40 + 2')).text, '42')
}))

test('code: shapes of results', () => box(async (sbx) => {
  const r = await sbx.runCode(`
from IPython.display import HTML, Markdown, display
display(HTML('<b>bold</b>'), Markdown('# head'))
class Both:
    def _repr_html_(self): return '<i>x</i>'
    def _repr_json_(self): return {'a': [1]}
    def __repr__(self): return 'both'
Both()`)
  assert.equal(r.error, undefined)
  assert.equal(r.results.length, 3)
  assert.equal(r.results[0].html, '<b>bold</b>')
  assert.equal(r.results[1].markdown, '# head')
  const main = r.results[2]
  assert.deepEqual([main.isMainResult, main.text, main.html, main.json], [true, 'both', '<i>x</i>', { a: [1] }])
}))

test('code: contexts', () => box(async (sbx) => {
  if (!sendsToken) {
    await rejects(sbx.createCodeContext({ cwd: '/tmp' }), 'SandboxError')
    return
  }
  const context = await sbx.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual([context.cwd, context.language], ['/tmp', 'python'])
  assert.equal((await sbx.runCode('import os; y = 1; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await sbx.runCode('y')).error.name, 'NameError')
  if (sbx.listCodeContexts) {
    assert.ok((await sbx.listCodeContexts()).some((c) => c.id === context.id))
    await sbx.restartCodeContext(context)
    assert.equal((await sbx.runCode('y', { context })).error.name, 'NameError')
    await sbx.removeCodeContext(context)
    await rejects(sbx.runCode('1', { context }), 'NotFoundError', 'SandboxError')
  }
  await rejects(sbx.runCode('1', { language: 'cobol' }), 'SandboxError')
  await rejects(sbx.createCodeContext({ cwd: '/no/such/place' }), 'SandboxError')
}))

test('code: contexts of a new sandbox', () => box(async (sbx) => {
  if (!sendsToken || !sbx.listCodeContexts) return // the rest is tested above
  assert.deepEqual((await sbx.listCodeContexts()).map((c) => c.language), ['python', 'javascript'])
  for (const cwd of ['/', '/etc', '/tmp', '/usr/lib']) {
    for (const language of ['python', 'javascript']) {
      const context = await sbx.createCodeContext({ cwd, language })
      const code = language === 'python' ? 'import os; os.getcwd()' : 'process.cwd()'
      assert.equal((await sbx.runCode(code, { context })).text, cwd)
    }
  }
}))

test('code: imports of modules', () => box(async (sbx) => {
  const run = (code) => sbx.runCode(code, { language: 'js' })
  const r = await run("import fs, { existsSync as has } from 'node:fs'\nimport * as path from 'path'; import 'node:url'\n[has('/etc'), path.join('a', 'b'), typeof fs.readFileSync].join()")
  assert.deepEqual([r.error, r.text], [undefined, 'true,a/b,function'])
  assert.equal((await run("import fs from 'node:fs'\ntypeof fs.statSync")).text, 'function') // again
  await sbx.files.write('mod.mjs', 'export default 42; export const x = 1')
  assert.equal((await run("import answer, {\n  x,\n} from './mod.mjs'\nanswer + x")).text, '43')
  assert.equal((await run('const s = `\nimport x from "nowhere"`\ns.length')).text, '24')
  assert.ok((await run("import x from 'not-there'")).error)
}))

test('code: JavaScript and shell scripts', () => box(async (sbx) => {
  const js = { language: 'js' }
  assert.equal((await sbx.runCode('const a = { n: 20 }; console.log("out"); a.n + 1', js)).text, '21')
  const again = await sbx.runCode('console.error(a.n); await Promise.resolve(a)', js)
  assert.deepEqual([again.results[0].json, again.logs.stderr.join('')], [{ n: 20 }, '20\n'])
  const thrown = (await sbx.runCode('function f() { throw new TypeError("no") }\nf()', js)).error
  assert.deepEqual([thrown.name, thrown.value], ['TypeError', 'no'])
  assert.match(thrown.traceback, /at f /)
  assert.equal((await sbx.runCode('process.env.A', { ...js, envs: { A: 'b' } })).text, 'b')

  const sh = { language: 'bash' }
  assert.equal((await sbx.runCode('V=one; cd /tmp; echo $V', sh)).logs.stdout.join(''), 'one\n')
  assert.equal((await sbx.runCode('echo $V $PWD $A', { ...sh, envs: { A: "it's" } })).logs.stdout.join(''), "one /tmp it's\n")
  const failed = await sbx.runCode('echo "left:$A" >&2; false', sh)
  assert.deepEqual([failed.error.value, failed.logs.stderr.join('')], ['1', 'left:\n'])
}))

test('code: timeouts and interrupts', () => box(async (sbx) => {
  await sbx.runCode('kept = 5')
  await rejects(sbx.runCode('while True: pass', { timeoutMs: 1000 }), 'TimeoutError')
  assert.equal((await sbx.runCode('kept')).text, '5')
  await rejects(sbx.runCode('for (;;);', { language: 'js', timeoutMs: 1000 }), 'TimeoutError')
  assert.equal((await sbx.runCode('6 * 7', { language: 'js' })).text, '42')
}))

// withPackages installs matplotlib and its dependencies in a sandbox whose image lacks them.
async function withPackages(sbx) {
  const packages = process.env.E2B_TEST_PACKAGES
  if (packages) {
    await sbx.files.write('/tmp/packages.tar', new Blob([readFileSync(packages)]))
    await sbx.commands.run('mkdir /tmp/packages && tar -xf /tmp/packages.tar -C /tmp/packages')
  }
}

test('code: charts', () => box(async (sbx) => {
  await withPackages(sbx)
  const r = await sbx.runCode(`
import sys; sys.path.append('/tmp/packages')
import matplotlib.pyplot as plt
plt.plot([1, 2, 3], [4, 5, 7], label='growth')
plt.title('A line'); plt.xlabel('time (s)'); plt.ylabel('size')
plt.show()
plt.bar(['a', 'b'], [3, 4]); plt.title('Bars')
plt.show()
plt.pie([1, 3], labels=['x', 'y'])`)
  assert.equal(r.error, undefined)
  assert.ok(r.results.length >= 3)
  const [line, bars, pie] = r.results.filter((x) => x.png)
  assert.equal(Buffer.from(line.png, 'base64').subarray(1, 4).toString(), 'PNG')
  assert.deepEqual([line.chart.type, line.chart.title, line.chart.x_label, line.chart.x_unit], ['line', 'A line', 'time (s)', 's'])
  assert.deepEqual(line.chart.elements, [{ label: 'growth', points: [[1, 4], [2, 5], [3, 7]] }])
  assert.deepEqual(bars.chart.elements.map((e) => [e.label, e.value]), [['a', 3], ['b', 4]])
  assert.deepEqual(pie.chart.elements.map((e) => [e.label, e.angle]), [['x', 90], ['y', 270]])
  const more = await sbx.runCode(`
import datetime, json
plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4, 5, 6]], patch_artist=True); plt.title('Boxes'); plt.show()
plt.plot([datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)], [0.1, 0.25]); plt.show()
plt.plot([1, 2], ['low', 'high']); plt.show()
plt.barh(['a', 'b'], [3, 3]); plt.xlabel('size (m)')`)
  assert.equal(more.error, undefined)
  const [boxes, dates, words, lying] = more.results.map((x) => x.chart)
  assert.deepEqual([boxes.type, boxes.title, boxes.elements.length], ['box_and_whisker', 'Boxes', 2])
  assert.deepEqual({ ...boxes.elements[0] }, { label: '1', min: 1, first_quartile: 2, median: 3, third_quartile: 4, max: 4, outliers: [20] })
  assert.deepEqual([dates.x_scale, dates.elements[0].points], ['datetime', [['2026-01-01', 0.1], ['2026-01-02', 0.25]]])
  assert.deepEqual([words.y_scale, words.x_scale, words.elements[0].points], ['categorical', 'linear', [[1, 'low'], [2, 'high']]])
  assert.deepEqual([lying.y_label, lying.y_unit, lying.elements.map((e) => [e.label, e.value])], ['size (m)', 'm', [['a', 3], ['b', 3]]])
}))

test('code: pictures', () => box(async (sbx) => {
  await withPackages(sbx)
  const r = await sbx.runCode(`
import sys; sys.path.append('/tmp/packages')
from PIL import Image
i = Image.new('RGB', (3, 2))
i.show()
i.save('picture.png')`)
  assert.equal(r.error, undefined)
  assert.deepEqual(r.results.map((x) => Buffer.from(x.png, 'base64').readUInt32BE(16)), [3, 3])
  assert.equal(await sbx.files.exists('picture.png'), true)
}))

if (!process.env.E2B_TEST_PACKAGES) test('code: data frames', () => box(async (sbx) => {
  const r = await sbx.runCode('import pandas as pd\npd.DataFrame({"a": [1, 2], "b": ["x", "y"]})')
  assert.equal(r.error, undefined)
  assert.match(r.results[0].html, /<table/)
  assert.match(r.results[0].text, /a +b/)
}))

test('code: what is not allowed', () => box(async (sbx) => {
  const url = process.env.E2B_SANDBOX_URL ?? `https://${sbx.getHost(49999)}`
  const headers = { 'E2b-Sandbox-Id': sbx.sandboxId, 'E2b-Sandbox-Port': '49999', 'Content-Type': 'application/json' }
  const ask = (method, path, more, body) => fetch(url + path, { method, headers: { ...headers, ...more }, body })
  const made = await sbx.runCode('1')
  assert.equal(made.text, '1')
  const traffic = { 'E2b-Traffic-Access-Token': sbx.trafficAccessToken ?? 'none' }
  for (const more of [{}, { 'X-Access-Token': 'wrong' }, { 'E2b-Traffic-Access-Token': 'wrong' }, traffic]) {
    for (const path of ['/execute', '/execute/', '//execute', '/execute?x=1', '/%65xecute', '/contexts/../execute']) {
      const { status } = await ask('POST', path, more, '{"code": "1"}')
      assert.ok(status === 401 || status === 404, `${path}: ${status}`)
    }
    if (more === traffic) continue
    for (const [method, path] of [['GET', '/contexts'], ['GET', '/contexts/'], ['POST', '/contexts'], ['POST', '/contexts/x/restart'], ['DELETE', '/contexts/x']]) {
      assert.equal((await ask(method, path, more, method === 'POST' ? '{}' : undefined)).status, 401, `${method} ${path}`)
    }
  }
}))

await run(version)
