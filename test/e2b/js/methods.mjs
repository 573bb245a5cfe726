// Finds the public methods of the SDK by looking at its classes, and notes which
// are called, so that a method that no case knows of shows up by itself.
import { readFileSync } from 'node:fs'
import path from 'node:path'

const called = new Map() // "Class.method" → whether it was called
const known = new Set() // prototypes and classes that were looked at
let hidden = new Set()

// privates are what the declarations call private or protected.
function privates(file) {
  const out = new Set()
  let name
  for (const line of readFileSync(file, 'utf8').split('\n')) {
    name = line.match(/^(?:export )?(?:declare )?(?:abstract )?class (\w+)/)?.[1] ?? name
    const m = line.match(/^\s+(?:private|protected) (?:static )?(?:readonly )?(?:async )?(?:get )?(\w+)/)
    if (m) out.add(`${name}.${m[1]}`)
  }
  return out
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
      called.set(as, true)
      return learn(original.apply(this, args))
    },
  })
}

const ours = /^(Sandbox|SandboxApi|Commands|Filesystem|Pty|Git|CommandHandle|WatchHandle|Volume|Secret|Template\w*|\w*Paginator)$/

function look(cls) {
  for (let c = cls; typeof c === 'function' && c !== Function.prototype && !known.has(c); c = Object.getPrototypeOf(c)) {
    if (!ours.test(c.name)) continue
    known.add(c)
    for (const key of Object.getOwnPropertyNames(c)) wrap(c, key, `${c.name}.${key}`)
    for (const key of Object.getOwnPropertyNames(c.prototype)) wrap(c.prototype, key, `${c.name}.${key}`)
  }
}

// learn looks at what a call returned, and at what hangs on it.
function learn(v) {
  if (v instanceof Promise) return Object.assign(v.then(learn), v)
  for (const one of Array.isArray(v) ? v.slice(0, 1) : [v]) {
    if (one === null || typeof one !== 'object') continue
    look(one.constructor)
    for (const part of ['files', 'commands', 'pty', 'git']) if (one[part] && ours.test(one.constructor.name)) look(one[part].constructor)
  }
  return v
}

export function watch(sdk, modules) {
  hidden = privates(path.join(modules, 'node_modules/e2b/dist/index.d.ts'))
  for (const v of Object.values(sdk)) if (typeof v === 'function' && v.prototype) look(v)
  // Template is a function that has the methods of its class as its own.
  for (const key of Object.keys(sdk.Template ?? {})) wrap(sdk.Template, key, `TemplateBase.${key}`)
}

// report tells, of each method, whether a case called it.
export const report = () => Object.fromEntries([...called].sort())
