import { connect } from '@atoll/sdk'
import { generateText, stepCountIs, tool } from 'ai'
import { z } from 'zod'

import { model } from './model.js'

const client = await connect()
const sandbox = await client.create()
const shell = tool({
  inputSchema: z.object({ command: z.string(), timeoutMs: z.number().default(60_000) }),
  execute: async ({ command, timeoutMs }, { abortSignal }) => {
    const r = await sandbox.run(command, { timeoutMs, signal: abortSignal })
    return { code: r.code, timedOut: r.timedOut, stdout: r.stdout.toString(), stderr: r.stderr.toString() }
  },
})
const writeFile = tool({
  inputSchema: z.object({ path: z.string(), text: z.string() }),
  execute: ({ path, text }) => sandbox.files.write(path, text),
})
try {
  const { text } = await generateText({ model, tools: { shell, writeFile }, stopWhen: stepCountIs(20), prompt: 'Add 40 and 2.' })
  console.log(text)
} finally {
  await sandbox.destroy()
  await client.close()
}
