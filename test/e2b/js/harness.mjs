// Runs the registered cases of the other files, one after the other, and
// reports each as a line of JSON. Cases for features that a version
// of the SDK lacks are not registered for it.
import { createRequire } from 'node:module'
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { report as methods, watch } from './methods.mjs'

const modules = process.env.E2B_TEST_MODULES
export const require = createRequire(path.join(modules, 'x.js'))
export const sdk = await import(pathToFileURL(require.resolve('e2b')))
export const version = JSON.parse(readFileSync(path.join(modules, 'node_modules/e2b/package.json'))).version
watch(sdk, modules)
export const { Sandbox } = sdk
export { assert }

const parts = (v) => v.split('.').map(Number)

// since reports whether a version, of this SDK if none is given, is at least that.
export function since(v, of = version) {
  const [a, b] = [parts(of), parts(v)]
  for (const i of [0, 1, 2]) if (a[i] !== b[i]) return a[i] > b[i]
  return true
}

// gone are the errors for a missing sandbox, from calls for which old SDKs
// have no specific error.
export const gone = since('2.6.3') ? ['SandboxNotFoundError', 'NotFoundError'] : ['SandboxError']

const cases = []

export function test(name, fn, from = '2.0.0') {
  if (since(from)) cases.push({ name, fn })
}

// box creates a sandbox for one case.
export async function box(fn, opts = {}) {
  const sbx = await Sandbox.create({ timeoutMs: 120_000, ...opts })
  try {
    return await fn(sbx)
  } finally {
    await sbx.kill()
  }
}

// until waits until fn returns something.
export async function until(fn, what) {
  for (let i = 0; i < 600; i++) {
    const v = await fn()
    if (v) return v
    await new Promise((r) => setTimeout(r, 50))
  }
  throw new Error('never: ' + what)
}

export async function rejects(promise, ...classes) {
  try {
    await promise
  } catch (e) {
    if (!classes.some((c) => sdk[c] && e instanceof sdk[c])) {
      throw new Error(`${e.constructor.name} instead of ${classes}: ${e.message}`, { cause: e })
    }
    return e
  }
  throw new Error(`did not fail with ${classes}`)
}

export async function run(told = version) {
  const only = process.env.E2B_TEST_RUN ? new RegExp(process.env.E2B_TEST_RUN) : /./
  for (const { name, fn } of cases.filter((c) => only.test(c.name))) {
    const report = { name, ok: true }
    const begun = performance.now()
    let timer
    const tooLong = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('took more than two minutes')), 120_000) })
    try {
      await Promise.race([fn(), tooLong])
    } catch (e) {
      report.ok = false
      report.error = `${e.message}\n${e.stack}${e.cause ? '\ncause: ' + e.cause.stack : ''}`
    }
    clearTimeout(timer)
    report.ms = Math.round(performance.now() - begun)
    process.stdout.write(JSON.stringify(report) + '\n')
  }
  process.stdout.write(JSON.stringify({ done: true, version: told, methods: process.env.E2B_TEST_RUN ? {} : methods() }) + '\n')
  process.exit(0)
}
