import assert from 'node:assert/strict'
import { test } from 'node:test'

import { RunState, run, setTracingDisabled, tool } from '@openai/agents-core'
import { Manifest, SandboxAgent } from '@openai/agents-core/sandbox'
import { assistantMessage, functionCall, ScriptedModel } from '@openai/agents-core/testing'
import { z } from 'zod'

import { AtollSandboxClient } from '../src/index.js'
import { end } from './daemon.js'

setTracingDisabled(true)
const client = new AtollSandboxClient()
test.after(async () => {
  await client.close()
  assert.deepEqual(end(), [], 'the tests left sandboxes')
})

const defaultManifest = () => new Manifest({ entries: { 'app/main.py': { type: 'file', content: "print('hello')\n" } } })

function outputs(model: ScriptedModel): Record<string, string> {
  const input = model.calls.at(-1)?.request.input
  assert.ok(Array.isArray(input))
  return Object.fromEntries(input.flatMap((i) => ('callId' in i && 'output' in i ? [[i.callId, JSON.stringify(i.output)]] : [])))
}

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

test('an approval, another process, and the same sandbox', async () => {
  const script = [
    [functionCall('exec_command', { cmd: 'echo before >mark' }, { callId: 'one' })],
    [functionCall('ask', {}, { callId: 'two' })],
    [functionCall('exec_command', { cmd: 'cat mark' }, { callId: 'three' })],
    [assistantMessage('done')],
  ]
  const agentOf = (model: ScriptedModel) =>
    new SandboxAgent({
      name: 'agent',
      model,
      instructions: 'work',
      defaultManifest: defaultManifest(),
      tools: [tool({ name: 'ask', description: 'ask', parameters: z.object({}), needsApproval: true, execute: () => 'approved' })],
    })
  const first = await run(agentOf(new ScriptedModel(script.slice(0, 2))), 'go', { sandbox: { client, options: { pauseOnExit: true } } })
  assert.equal(first.interruptions.length, 1)
  const text = first.state.toString()
  const other = new AtollSandboxClient()
  const model = new ScriptedModel(script.slice(2))
  const agent = agentOf(model)
  const state = await RunState.fromString(agent, text)
  const [asked] = state.getInterruptions()
  assert.ok(asked)
  state.approve(asked)
  const second = await run(agent, state, { sandbox: { client: other, options: { pauseOnExit: true } } })
  assert.equal(second.finalOutput, 'done')
  assert.match(outputs(model).three ?? '', /before/)
  for (const s of await (await other.connect()).sessions.list()) await (await other.connect()).sessions.remove(s.id)
  await other.close()
})
