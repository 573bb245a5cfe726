import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'

import { run, setTracingDisabled } from '@openai/agents-core'
import { Manifest, SandboxAgent } from '@openai/agents-core/sandbox'
import { assistantMessage, functionCall, ScriptedModel } from '@openai/agents-core/testing'

import { AtollSandboxClient } from '../src/index.js'
import { cli, end } from './daemon.js'
import { agentOf, before, directoryStore, outputs } from './worker.js'

setTracingDisabled(true)
const client = new AtollSandboxClient()
test.after(async () => {
  await client.close()
  assert.deepEqual(end(), [], 'the tests left sandboxes')
})

const defaultManifest = () => new Manifest({ entries: { 'app/main.py': { type: 'file', content: "print('hello')\n" } } })

test('an agent works', async () => {
  const model = new ScriptedModel([
    [functionCall('exec_command', { cmd: 'python3 app/main.py && ls' }, { callId: 'run' })],
    [
      {
        type: 'apply_patch_call',
        id: 'patch',
        callId: 'patch',
        status: 'completed',
        operation: { type: 'update_file', path: 'app/main.py', diff: "@@\n-print('hello')\n+print('patched')\n" },
      },
    ],
    [functionCall('exec_command', { cmd: 'python3 main.py\nexit 7', workdir: 'app' }, { callId: 'again' })],
    [assistantMessage('done')],
  ])
  const agent = new SandboxAgent({ name: 'agent', model, instructions: 'work', defaultManifest: defaultManifest() })
  const result = await run(agent, 'go', { sandbox: { client } })
  assert.equal(result.finalOutput, 'done')
  const said = outputs(model)
  assert.match(said.run ?? '', /hello/)
  assert.match(said.again ?? '', /patched/)
  assert.match(said.again ?? '', /code 7/)
})

for (const [kind, options] of Object.entries({
  nothing: {},
  pause: { pauseOnExit: true },
  snapshot: { workspacePersistence: 'snapshot' as const },
  tar: {},
})) {
  test(`an approval, and another process goes on: ${kind}`, async () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'atoll-state-'))
    const store = kind === 'tar' ? path.join(dir, 'store') : ''
    try {
      const client = new AtollSandboxClient({}, {}, store ? directoryStore(store) : undefined)
      const first = await run(agentOf(new ScriptedModel(before)), 'go', { sandbox: { client, options } })
      await client.close()
      assert.equal(first.interruptions.length, 1)
      const running = cli('ls', '-q').split('\n').filter(Boolean)
      assert.equal(running.length, store || kind === 'snapshot' ? 0 : 1, 'what is kept otherwise is gone')
      assert.deepEqual(cli('snapshot', 'ls', '-q').split('\n').filter(Boolean).length, kind === 'snapshot' ? 1 : 0)
      writeFileSync(path.join(dir, 'state'), first.state.toString())
      const worker = new URL('worker.js', import.meta.url).pathname
      const second = execFileSync(process.execPath, [worker, path.join(dir, 'state'), store], { encoding: 'utf8' })
      const { output, said } = JSON.parse(second) as { output: string; said: string }
      assert.equal(output, 'done')
      assert.match(
        said,
        running.length > 0 ? /before\\nnotes\\n1/ : /before\\nnotes\\n0/,
        'the files are there, and the processes of a sandbox that stayed',
      )
      assert.equal(cli('snapshot', 'ls', '-q'), '', 'a snapshot is left')
      if (store) assert.deepEqual(readdirSync(store), [], 'a tar is left')
    } finally {
      rmSync(dir, { recursive: true })
    }
  })
}
