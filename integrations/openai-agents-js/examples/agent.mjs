// An agent whose model has fixed answers, so that the example needs no key.
import { run, setTracingDisabled } from '@openai/agents-core'
import { Manifest, SandboxAgent } from '@openai/agents-core/sandbox'
import { assistantMessage, functionCall, ScriptedModel } from '@openai/agents-core/testing'
import { AtollSandboxClient } from '@atoll/openai-agents'

setTracingDisabled(true)
const model = new ScriptedModel([
  [functionCall('exec_command', { cmd: 'python3 answer.py' }, { callId: 'run' })],
  [assistantMessage('The answer is 42.')],
])
const agent = new SandboxAgent({
  name: 'worker',
  model,
  instructions: 'Use the shell.',
  defaultManifest: new Manifest({ entries: { 'answer.py': { type: 'file', content: 'print(6 * 7)\n' } } }),
})
const client = new AtollSandboxClient()
const result = await run(agent, 'What is six times seven?', { sandbox: { client, options: { memory: 512 << 20 } } })
console.log(JSON.stringify(model.calls.at(-1).request.input.at(-1).output).match(/42/)[0])
console.log(result.finalOutput)
await client.close()
