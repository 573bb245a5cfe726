import assert from 'node:assert/strict'
import { test } from 'node:test'

import * as atoll from '../src/index.js'
import { Daemon } from './daemon.js'

const daemon = await Daemon.start()
const client = await atoll.connect()
const box = await client.create({ name: 'notebook' })
test.after(async () => {
  await box.destroy()
  await client.close()
  await daemon.stop()
})

test('code keeps its variables', async () => {
  const first = await box.runCode('import sys\nx = 6 * 7\nprint("out")\nprint("err", file=sys.stderr)\nx')
  assert.deepEqual(
    { ...first, results: first.results.length },
    { results: 1, text: '42', stdout: 'out\n', stderr: 'err\n', count: 1, timedOut: false },
  )
  const kinds: string[] = []
  assert.equal((await box.runCode('x + 1', { onEvent: (e) => kinds.push(e.type) })).text, '43')
  assert.deepEqual(kinds, ['started', 'result', 'end'])
  assert.equal((await box.runCode('1 / 0')).error?.name, 'ZeroDivisionError')
})

test('code is interrupted by its timeout and by its caller', async () => {
  const late = await box.runCode('while True: print(1)', { timeoutMs: 500 })
  assert.equal(late.timedOut, true)
  const caller = new AbortController()
  const running = box.runCode('while True: print(1)', {
    signal: caller.signal,
    onEvent: () => {
      caller.abort()
    },
  })
  await assert.rejects(running)
  assert.equal((await box.runCode('x')).text, '42')
})

test('contexts have variables of their own', async () => {
  const other = await box.createCodeContext({ language: 'bash', dir: '/tmp' })
  assert.equal((await box.runCode('pwd', { context: other.id })).stdout, '/tmp\n')
  assert.ok((await box.codeContexts()).some((c) => c.id === other.id))
  await box.restartCodeContext(other.id)
  await box.interruptCodeContext(other.id)
  await box.removeCodeContext(other.id)
  await assert.rejects(box.runCode('pwd', { context: other.id }), { name: 'NotFoundError' })
})
