// The kernel for JavaScript: node's own interactive evaluator, which keeps
// variables and knows await at the top level.
'use strict'
const fs = require('node:fs')
const repl = require('node:repl')
const util = require('node:util')
const { PassThrough } = require('node:stream')
const readline = require('node:readline')

const mark = `\0${process.env.ATOLL_KERNEL_MARK}\0`
delete process.env.ATOLL_KERNEL_MARK

function write(fd, text) {
  for (let data = Buffer.from(text); data.length > 0;) {
    try {
      data = data.subarray(fs.writeSync(fd, data))
    } catch (e) {
      if (e.code !== 'EAGAIN') throw e
    }
  }
}

const say = (message) => write(4, JSON.stringify(message) + '\n')

const server = repl.start({ prompt: '', input: new PassThrough(), output: new PassThrough().resume(), useGlobal: true, breakEvalOnSigint: true })
const shown = Symbol.for('Jupyter.display')
let interrupt = () => {}
process.on('SIGINT', () => interrupt(new Error('interrupted')))
process.on('unhandledRejection', (e) => console.error(e))

// What code throws does not end the kernel, now or later. Some versions of node
// hand it to the evaluator's domain and not to whoever called.
let waiting = false
const thrown = (e) => (waiting ? interrupt(e) : console.error(e))
process.on('uncaughtException', thrown)
server._domain?.removeAllListeners('error')
server._domain?.on('error', thrown)

// shape is a value as a result of several forms.
function shape(value) {
  const text = typeof value === 'string' ? value : util.inspect(value)
  const result = { type: 'result', is_main_result: true, text }
  if (value !== null && typeof value === 'object') {
    if (typeof value[shown] === 'function') {
      const bundle = value[shown]()
      const forms = { 'text/html': 'html', 'text/markdown': 'markdown', 'image/svg+xml': 'svg', 'image/png': 'png', 'image/jpeg': 'jpeg', 'text/latex': 'latex', 'application/json': 'json' }
      for (const [kind, name] of Object.entries(forms)) if (kind in bundle) result[name] = bundle[kind]
      return result
    }
    try {
      const json = JSON.stringify(value)
      if (json && json.length < 1 << 20 && (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype)) result.json = JSON.parse(json)
    } catch {}
  }
  return result
}

// stack is where something went wrong, without the kernel's own frames.
function stack(error) {
  const own = /\((node:|.*interpreter\/kernel\.js)|at new Promise \(<anonymous>\)/
  return String(error.stack || '').split('\n').filter((line) => !own.test(line)).join('\n')
}

// outside returns where code is neither a comment nor in quotes: those are blank.
function outside(code) {
  return code.replace(/\/\/[^\n]*|\/\*[^]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[^]|[^`\\])*`/g,
    (s) => (s[0] === '/' || s[0] === '`' ? s.replace(/[^\n]/g, ' ') : s))
}

const declaration = /(?<=^|;)([ \t]*)import\s*(?:([^'"();]*?)\s*from\s*)?(['"])([^'"\n]+)\3(?:\s*(?:with|assert)\s*(\{[^}]*\}))?[ \t]*;?/gm

// withoutImports makes calls of import declarations, which only modules may have.
function withoutImports(code) {
  const visible = outside(code)
  let out = ''
  let at = 0
  for (const m of visible.matchAll(declaration)) {
    const [whole, indent, names, , from, attributes] = m
    if (/^type\s/.test(names ?? '')) continue
    out += code.slice(at, m.index) + indent + imported(names, JSON.stringify(from) + (attributes ? `, { with: ${attributes} }` : ''))
    at = m.index + whole.length
  }
  return out + code.slice(at)
}

function imported(names, from) {
  if (!names) return `await import(${from});`
  const [, first, star, some] = names.match(/^([\w$]+)?\s*,?\s*(?:\*\s*as\s+([\w$]+))?\s*(?:\{([^]*)\})?$/) ?? []
  const parts = []
  if (first) parts.push(`default: ${first}`)
  for (const one of (some ?? '').split(',')) if (one.trim()) parts.push(one.trim().replace(/\s+as\s+/, ': '))
  const whole = star ? `var ${star} = await import(${from});` : ''
  return whole + (parts.length || !star ? `var { ${parts.join(', ')} } = await import(${from});` : '')
}

// compiler returns what makes JavaScript of TypeScript, undefined if there is none.
function compiler() {
  const places = [process.cwd() + '/node_modules', '/usr/share/nodejs', '/usr/lib/node_modules', '/usr/local/lib/node_modules']
  for (const place of [...places, ...(process.env.NODE_PATH ?? '').split(':').filter(Boolean)]) {
    try {
      const ts = require(place + '/typescript')
      return (code) => transpiled(ts, code)
    } catch (e) {
      if (e.code !== 'MODULE_NOT_FOUND') throw e
    }
  }
  const strip = require('node:module').stripTypeScriptTypes
  return strip && ((code) => strip(code, { mode: 'transform' }))
}

function transpiled(ts, code) {
  // An import may be used by later code only, and is kept.
  const keep = parseInt(ts.version) >= 5 ? { verbatimModuleSyntax: true } : { preserveValueImports: true, isolatedModules: true }
  const { outputText, diagnostics } = ts.transpileModule(code, { reportDiagnostics: true, compilerOptions: { target: 'es2022', module: 'esnext', ...keep } })
  if (diagnostics.length > 0) throw new SyntaxError(ts.flattenDiagnosticMessageText(diagnostics[0].messageText, '\n'))
  return outputText.replace(/^export \{\};?\s*$/m, '').replace(/^"use strict";\n/, '')
}

const plain = process.argv[2] === 'typescript' ? compiler() : (code) => code
if (process.argv[3] === 'check') process.exit(plain ? 0 : 1)

async function evaluate(cell) {
  const code = plain(cell)
  return new Promise((resolve, reject) => {
    interrupt = reject
    waiting = true
    server.eval(withoutImports(code) + '\n', server.context, 'cell', (err, value) => (err ? reject(err.err ?? err) : resolve(value)))
  })
}

async function execute({ code, env }) {
  const old = {}
  for (const k of Object.keys(env)) old[k] = process.env[k]
  Object.assign(process.env, env)
  try {
    const value = await evaluate(code)
    if (value !== undefined) say(shape(value))
  } catch (e) {
    const error = e instanceof Error || (e && e.stack) ? e : { name: 'Error', message: util.inspect(e), stack: '' }
    say({ type: 'error', name: String(error.name || 'Error'), value: String(error.message), traceback: stack(error) })
  }
  interrupt = () => {}
  waiting = false
  for (const [k, v] of Object.entries(old)) if (v === undefined) delete process.env[k]; else process.env[k] = v
  say({ type: 'done' })
  write(1, mark)
  write(2, mark)
}

let last = Promise.resolve()
readline.createInterface({ input: fs.createReadStream(null, { fd: 3 }) })
  .on('line', (line) => { last = last.then(() => execute(JSON.parse(line))) })
  .on('close', () => process.exit())
