// The agent of the tests, which two processes share. Run as a program, it continues where the other one stopped.
import { readFileSync } from 'node:fs'

import { RunState, run, setTracingDisabled, tool } from '@openai/agents-core'
import { Manifest, type RemoteSnapshotStore, SandboxAgent } from '@openai/agents-core/sandbox'
import { assistantMessage, functionCall, ScriptedModel } from '@openai/agents-core/testing'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'

import { AtollSandboxClient } from '../src/index.js'

setTracingDisabled(true)

export const before = [
  [functionCall('exec_command', { cmd: 'cat notes.txt; echo before >mark; (sleep 600 >/dev/null 2>&1 &)' }, { callId: 'one' })],
  [functionCall('ask', {}, { callId: 'two' })],
]
const rest = [
  [functionCall('exec_command', { cmd: 'cat mark notes.txt; pgrep -c sleep' }, { callId: 'three' })],
  [assistantMessage('done')],
]

export function agentOf(model: ScriptedModel) {
  return new SandboxAgent({
    name: 'agent',
    model,
    instructions: 'work',
    defaultManifest: new Manifest({ entries: { 'notes.txt': { type: 'file', content: 'notes\n' } } }),
    tools: [tool({ name: 'ask', description: 'ask', parameters: z.object({}), needsApproval: true, execute: () => 'approved' })],
  })
}

export function outputs(model: ScriptedModel): Record<string, string> {
  const input = model.calls.at(-1)?.request.input
  if (!Array.isArray(input)) throw new Error('the model was not called')
  return Object.fromEntries(input.flatMap((i) => ('callId' in i && 'output' in i ? [[i.callId, JSON.stringify(i.output)]] : [])))
}

/** A store of snapshots in a directory. */
export function directoryStore(dir: string): RemoteSnapshotStore {
  mkdirSync(dir, { recursive: true })
  return {
    save: async ({ id = 'saved', data }) => {
      writeFileSync(path.join(dir, id), data)
      return { id }
    },
    load: async ({ id }) => ({ data: readFileSync(path.join(dir, id)) }),
    delete: async ({ id }) => rmSync(path.join(dir, id), { force: true }),
  }
}

async function goOn(file: string, store: string) {
  const model = new ScriptedModel(rest)
  const agent = agentOf(model)
  const state = await RunState.fromString(agent, readFileSync(file, 'utf8'))
  for (const asked of state.getInterruptions()) state.approve(asked)
  const client = new AtollSandboxClient({}, {}, store ? directoryStore(store) : undefined)
  const result = await run(agent, state, { sandbox: { client } })
  // What the run leaves so that another one could go on.
  type Left = { sandbox?: { sessionState?: { snapshot?: unknown; providerState?: Record<string, unknown> } } }
  const left = (JSON.parse(result.state.toString()) as Left).sandbox?.sessionState
  if (left) await client.delete(await client.deserializeSessionState({ ...left.providerState, snapshot: left.snapshot }))
  await client.close()
  console.log(JSON.stringify({ output: result.finalOutput, said: outputs(model).three }))
}

if (process.argv[2]) await goOn(process.argv[2], process.argv[3] ?? '')
