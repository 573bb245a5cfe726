// A model that needs no key: it makes the calls of the script $SCRIPT, and its answer is what the tools said, as JSON.
import type { LanguageModelV4 } from '@ai-sdk/provider'
import type { MastraModelConfig } from '@mastra/core/llm'
import { MockLanguageModelV4 } from 'ai/test'

type Said = Record<string, string>
type Call = [tool: string, input: (said: Said) => object]

const work = (dir: string) =>
  [
    ['write', { path: `${dir}/add.py`, text: 'import sys\nprint(sum(map(int, sys.argv[1:])))\n' }],
    ['run', { command: `python3 ${dir}/add.py 40 2` }],
    ['kernel', { command: 'dmesg' }],
    ['fail', { command: 'echo no >&2; exit 7' }],
    ['slow', { command: 'sleep 300 & sleep 300', seconds: 1 }],
    ['after', { command: `echo alive; ls ${dir}; pgrep -c sleep || true` }],
  ] as const

/** The work, in the words of the tools of each program. */
const scripts: Record<string, Record<string, Call>> = {
  'ai-sdk': Object.fromEntries(
    work('/workspace').map(([id, input]) => [
      id,
      'path' in input
        ? ['writeFile', () => input]
        : ['shell', () => ({ command: input.command, timeoutMs: 'seconds' in input ? 1000 * input.seconds : undefined })],
    ]),
  ),
  'ai-sdk-mcp': {
    create: ['sandbox_create', () => ({})],
    ...Object.fromEntries(
      work('/workspace').map(([id, input]): [string, Call] => [
        id,
        'path' in input
          ? ['sandbox_write', (said) => ({ sandbox: sandboxOf(said), path: input.path, content: input.text })]
          : [
              'sandbox_exec',
              (said) => ({
                sandbox: sandboxOf(said),
                command: input.command,
                ...('seconds' in input && { timeout_seconds: input.seconds }),
              }),
            ],
      ]),
    ),
    remove: ['sandbox_remove', (said) => ({ sandbox: sandboxOf(said) })],
  },
  mastra: Object.fromEntries(
    work('.').map(([id, input]): [string, Call] => [
      id,
      [
        'mastra_workspace_execute_command',
        () =>
          'path' in input
            ? { command: `cat >${input.path} <<'END'\n${input.text}END` }
            : { command: input.command, timeout: 'seconds' in input ? input.seconds : 60 },
      ],
    ]),
  ),
}

function sandboxOf(said: Said): string {
  const name = /"sandbox\\?":\s*\\?"([^"\\]+)/.exec(said.create ?? '')?.[1]
  if (!name) throw new Error(`there is no name in ${said.create}`)
  return name
}

const script = Object.entries(scripts[process.env.SCRIPT ?? ''] ?? {})
const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
}

export const model: LanguageModelV4 = new MockLanguageModelV4({
  async doGenerate({ prompt }) {
    const said: Said = {}
    for (const message of prompt) {
      if (message.role !== 'tool') continue
      for (const part of message.content) if (part.type === 'tool-result') said[part.toolCallId] = JSON.stringify(part.output)
    }
    const next = script.find(([id]) => !(id in said))
    if (!next)
      return {
        content: [{ type: 'text', text: JSON.stringify(said) }],
        finishReason: { unified: 'stop', raw: undefined },
        usage,
        warnings: [],
      }
    const [toolCallId, [toolName, input]] = next
    return {
      content: [{ type: 'tool-call', toolCallId, toolName, input: JSON.stringify(input(said)) }],
      finishReason: { unified: 'tool-calls', raw: undefined },
      usage,
      warnings: [],
    }
  },
})

// Mastra has a copy of these types, of another version.
export const mastraModel = model as unknown as MastraModelConfig
