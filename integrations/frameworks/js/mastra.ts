import { Agent } from '@mastra/core/agent'
import { Workspace } from '@mastra/core/workspace'
import { E2BSandbox } from '@mastra/e2b'

import { mastraModel as model } from './model.js'

const workspace = new Workspace({ sandbox: new E2BSandbox({ template: 'base' }) })
await workspace.init()
try {
  const agent = new Agent({ id: 'worker', name: 'worker', instructions: 'Work.', model, workspace })
  const { text } = await agent.generate('Add 40 and 2.', { maxSteps: 20 })
  console.log(text)
} finally {
  await workspace.destroy()
}
