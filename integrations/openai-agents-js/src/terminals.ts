/** Interactive commands of a model. */
import type { Process } from '@atoll/sdk'
import { SandboxPtySessionNotFoundError, type WriteStdinArgs } from '@openai/agents-core/sandbox'
import { elapsedSeconds, formatExecResponse, truncateOutput } from '@openai/agents-core/sandbox/internal'

const yieldMs = 10_000
/** Maximum number of characters of unread output; the newest are kept. */
const maxOutput = 1 << 20

interface Entry {
  process: Process
  text: string
  exitCode: number | undefined
  ended: Promise<void>
}

/** @internal */
export class Terminals {
  readonly #entries = new Map<number, Entry>()
  #last = 0

  /** Follow a command, and return the output until it ended or the time was over. */
  async add(process: Process, o: { yieldTimeMs?: number; maxOutputTokens?: number }): Promise<string> {
    const entry: Entry = { process, text: '', exitCode: undefined, ended: Promise.resolve() }
    entry.ended = follow(entry)
    const id = ++this.#last
    this.#entries.set(id, entry)
    return this.#answer(id, entry, o)
  }

  async write(args: WriteStdinArgs): Promise<string> {
    const entry = this.#entries.get(args.sessionId)
    if (!entry)
      throw new SandboxPtySessionNotFoundError(`there is no session ${args.sessionId}`, { provider: 'atoll', sessionId: args.sessionId })
    if (args.chars) await entry.process.write(args.chars).catch(() => {}) // it has ended, which the result says
    return this.#answer(args.sessionId, entry, args)
  }

  async #answer(id: number, entry: Entry, o: { yieldTimeMs?: number; maxOutputTokens?: number }): Promise<string> {
    const start = Date.now()
    let timer: NodeJS.Timeout | undefined
    await Promise.race([
      entry.ended,
      new Promise((resolve) => {
        timer = setTimeout(resolve, o.yieldTimeMs ?? yieldMs)
      }),
    ])
    clearTimeout(timer)
    const output = truncateOutput(entry.text, o.maxOutputTokens)
    entry.text = ''
    const running = entry.exitCode === undefined
    if (!running) {
      this.#entries.delete(id)
      await entry.process.close()
    }
    return formatExecResponse({
      output: output.text,
      wallTimeSeconds: elapsedSeconds(start),
      ...(running ? { sessionId: id } : { exitCode: entry.exitCode }),
      originalTokenCount: output.originalTokenCount,
    })
  }

  /** End all commands. */
  async close(): Promise<void> {
    const all = [...this.#entries.values()]
    this.#entries.clear()
    await Promise.all(all.map((it) => it.process.close()))
  }
}

/** Collect output to its end. */
async function follow(entry: Entry): Promise<void> {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }
  try {
    for await (const { stream, data } of entry.process) {
      entry.text = (entry.text + decoders[stream].decode(data, { stream: true })).slice(-maxOutput)
    }
    entry.exitCode = (await entry.process.wait()).code
  } catch (e) {
    entry.text += `\n[the connection to the command was lost: ${String(e)}]`
    entry.exitCode = -1
  }
}
