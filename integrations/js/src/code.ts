/** The code interpreter of a sandbox. */
import type { Conn } from './conn.js'
import { unreachable } from './errors.js'
import type * as m from './models.js'

export interface CodeOptions {
  /** python, javascript, typescript, bash, r or java; python if left out. */
  language?: string | undefined
  /** The id of a context, instead of the default one of the language. */
  context?: string | undefined
  env?: Record<string, string> | undefined
  /** After this time the code is interrupted. */
  timeoutMs?: number | undefined
  /** Gets the events as they come. */
  onEvent?: ((event: m.CodeEvent) => void) | undefined
  /** Interrupts the code. */
  signal?: AbortSignal | undefined
}

/** What code did. */
export interface Execution {
  /** What the code showed, each in all its forms. Pictures are base64. */
  results: m.CodeResult[]
  /** The value of the last expression, as text. */
  text: string
  stdout: string
  stderr: string
  /** The exception that ended the code. */
  error?: m.CodeError
  /** The executions that the context has had. */
  count: number
  /** The timeout interrupted the code. */
  timedOut: boolean
}

/** @internal */
export async function runCode(conn: Conn, path: string, code: string, o: CodeOptions): Promise<Execution> {
  const request: m.CodeRequest = {
    code,
    ...(o.language && { language: o.language }),
    ...(o.context && { context: o.context }),
    ...(o.env && { env: o.env }),
    ...(o.timeoutMs && { timeoutMs: Math.ceil(o.timeoutMs) }),
  }
  const out: Execution = { results: [], text: '', stdout: '', stderr: '', count: 0, timedOut: false }
  for await (const event of conn.lines<m.CodeEvent>(path, { json: request, signal: o.signal })) {
    if (event.type === 'stdout' || event.type === 'stderr') out[event.type] += event.text ?? ''
    if (event.result) out.results.push(event.result)
    if (event.result?.main) out.text = event.result.text ?? ''
    if (event.exception) out.error = event.exception
    out.count = event.count ?? out.count
    o.onEvent?.(event)
    if (event.type === 'end') return { ...out, timedOut: event.timedOut === true }
  }
  throw unreachable()
}
