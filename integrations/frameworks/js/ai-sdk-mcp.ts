import { createMCPClient } from '@ai-sdk/mcp'
import { Experimental_StdioMCPTransport } from '@ai-sdk/mcp/mcp-stdio'
import { generateText, stepCountIs } from 'ai'

import { model } from './model.js'

const env = process.env as Record<string, string>
const mcp = await createMCPClient({ transport: new Experimental_StdioMCPTransport({ command: 'atoll', args: ['mcp'], env }) })
try {
  const { text } = await generateText({ model, tools: await mcp.tools(), stopWhen: stepCountIs(20), prompt: 'Add 40 and 2.' })
  console.log(text)
} finally {
  await mcp.close()
}
