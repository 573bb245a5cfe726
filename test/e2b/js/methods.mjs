// Finds the public methods of the SDK by reflection, and records which
// are called, so that untested methods are detected.
import { readFileSync } from 'node:fs'
import path from 'node:path'

const called = new Map() // "Class.method", "Class#method" of its objects → whether it was called
const known = new Set() // prototypes and classes already visited
let hidden = new Set()

// ours are the classes whose methods must be called.
let ours = /^(Sandbox|SandboxApi|Commands|Filesystem|Pty|Git|CommandHandle|WatchHandle|Volume|Secret|Template\w*|\w*Paginator|ReadyCmd|LogEntry)$/

// plain returns the name of a class in the declarations: bundlers rename
// duplicates.
const plain = (name) => name.replace(/^_+|\d+$/g, '')

// declared reads the public and the other methods of classes from the
// declarations of a package.
function declared(file) {
  const [open, closed] = [new Set(), new Set()]
  let name
  let indent
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    const cls = line.match(/^(?:export )?(?:declare )?(?:abstract )?class (\w+)/)
    if (cls) [name, indent] = [plain(cls[1]), undefined]
    else if (/^\S/.test(line) && !line.startsWith('/')) name = undefined
    const m = line.match(/^( +)(private |protected )?(static )?(?:readonly |async )*(get |set )?(\w+)(\(|<|;|:|\?)/)
    if (!name || !m || (indent ??= m[1]) !== m[1] || !ours.test(name)) continue
    const key = name + (m[3] ? '.' : '#') + m[5]
    if (m[2]) closed.add(key)
    else if (!m[4] && /[(<]/.test(m[6]) && m[5] !== 'constructor' && !m[5].startsWith('_')) open.add(key)
  }
  return { open, closed }
}

function wrap(on, key, as) {
  const d = Object.getOwnPropertyDescriptor(on, key)
  if (typeof d?.value !== 'function' || key === 'constructor' || key.startsWith('_') || hidden.has(as)) return
  if (d.value.prototype && /^class/.test(Function.prototype.toString.call(d.value))) return
  called.set(as, called.get(as) ?? false)
  const original = d.value
  if (!d.configurable && !d.writable) return
  Object.defineProperty(on, key, {
    ...d,
    value(...args) {
      if (called.has(as)) called.set(as, true)
      return learn(original.apply(this, args))
    },
  })
}

// own visits the members of a class that are not inherited.
function own(c) {
  if (known.has(c)) return
  known.add(c)
  for (const key of Object.getOwnPropertyNames(c)) wrap(c, key, `${plain(c.name)}.${key}`)
  for (const key of Object.getOwnPropertyNames(c.prototype)) wrap(c.prototype, key, `${plain(c.name)}#${key}`)
}

function look(cls) {
  for (let c = cls; typeof c === 'function' && c !== Function.prototype; c = Object.getPrototypeOf(c)) {
    if (c.prototype && ours.test(plain(c.name))) own(c)
  }
}

// learn visits the value of a call and its properties.
export function learn(v) {
  if (v instanceof Promise) return Object.assign(v.then(learn), v)
  for (const one of Array.isArray(v) ? v.slice(0, 1) : [v]) {
    if (one === null || typeof one !== 'object') continue
    look(one.constructor)
    for (const part of ['files', 'commands', 'pty', 'git']) if (one[part] && ours.test(plain(one.constructor.name))) look(one[part].constructor)
  }
  return v
}

// expect records the methods in the declarations of a package.
function expect(file) {
  const { open, closed } = declared(file)
  hidden = new Set([...hidden, ...closed])
  for (const key of open) if (!hidden.has(key)) called.set(key, called.get(key) ?? false)
}

export function watch(sdk, modules) {
  expect(path.join(modules, 'node_modules/e2b/dist/index.d.ts'))
  for (const v of Object.values(sdk)) if (typeof v === 'function' && v.prototype) look(v)
  // Template is a function that has the methods of its class as properties.
  if (sdk.Template) for (const one of [sdk.Template(), sdk.waitForPort(1)]) look(one.constructor)
  for (const key of Object.keys(sdk.Template ?? {})) wrap(sdk.Template, key, `TemplateBase.${key}`)
}

// watchOwn is watch for the members that a class of another package adds to
// its parent. After this only these are reported.
export function watchOwn(cls, declarations) {
  called.clear()
  ours = new RegExp(`^${plain(cls.name)}$`)
  expect(declarations)
  own(cls)
}

// report lists for each method whether a case called it.
export const report = () => Object.fromEntries([...called].sort())
