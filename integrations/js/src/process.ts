/** Commands. */
import type { RawData, WebSocket } from 'ws'

import type { Conn } from './conn.js'
import { type AtollError, ConflictError, fromProblem, unreachable } from './errors.js'
import type * as m from './models.js'

const stdin = 0
const stdoutChannel = 1
const stderrChannel = 2
/** Bytes of a channel that may be in flight unread. */
const windowBytes = 256 << 10
const frameBytes = 32 << 10
const pingMs = 30_000

/** How to run a command. */
export interface CommandOptions {
  env?: Record<string, string>
  /** Absolute directory to start in. */
  cwd?: string
  user?: string
  /** Kill the command after this many milliseconds. */
  timeoutMs?: number
}

export interface RunOptions extends CommandOptions {
  /** Standard input of the command. */
  input?: string | Uint8Array
  /** Bytes of each stream to keep; one MiB if left out, at most 16. */
  outputLimit?: number
  signal?: AbortSignal
}

export interface ExecOptions extends CommandOptions {
  /** Run it on a terminal of this size. */
  tty?: m.WindowSize
  /** The caller will write and close the standard input. */
  stdin?: boolean
  /** Keep it running when no client is connected. */
  background?: boolean
  /** How long the command waits for attach after a lost connection, without losing output, in milliseconds. */
  holdMs?: number
}

/** The exit and the output of a command. */
export interface Result {
  exit: m.Exit
  code: number
  /** It exited with code 0. */
  ok: boolean
  timedOut: boolean
  stdout: Buffer
  stderr: Buffer
  /** The output was longer than the output limit. */
  truncated: boolean
  /** How to allow hosts, if the command failed and its output says that it could not reach one; else empty. */
  hint: string
}

/** A chunk of a command's output. */
export interface Output {
  stream: 'stdout' | 'stderr'
  data: Buffer
  /** Bytes lost before this chunk, because the log was full. */
  dropped: number
}

/** @internal A command as JSON. A string is a script for /bin/sh, an array a program with its arguments. */
export function command(args: string | readonly string[], o: RunOptions & ExecOptions = {}): m.ExecRequest {
  const out: m.ExecRequest = {
    env: o.env,
    dir: o.cwd,
    user: o.user,
    timeoutMs: o.timeoutMs,
    tty: o.tty,
    stdin: o.stdin ?? (o.tty ? true : undefined),
    background: o.background,
    holdMs: o.holdMs,
    outputLimit: o.outputLimit,
  }
  if (typeof args === 'string') out.shell = args
  else out.args = [...args]
  if (o.input !== undefined && o.input.length > 0) out.inputBase64 = Buffer.from(o.input).toString('base64')
  return out
}

/** @internal */
export function toResult(r: m.ExecResult): Result {
  if (!r.exit) throw unreachable()
  const bytes = (o?: m.Output) => Buffer.from(o?.data ?? '', o?.encoding === 'base64' ? 'base64' : 'utf8')
  const timedOut = r.exit.reason === 'timeout'
  return {
    exit: r.exit,
    code: r.exit.code,
    ok: r.exit.code === 0 && !timedOut,
    timedOut,
    stdout: bytes(r.stdout),
    stderr: bytes(r.stderr),
    truncated: Boolean(r.stdout?.truncated || r.stderr?.truncated),
    hint: r.hint ?? '',
  }
}

interface Message {
  type: string
  process?: m.ProcessInfo
  exit?: m.Exit
  error?: unknown
  channel?: number
  n?: number
}

/**
 * A connection to one command. Iterating over it yields its output as it arrives.
 *
 * A command that writes more than the buffers hold (256 KiB per stream) blocks until its output is read, unless it runs in the
 * background. Closing kills the command, unless it runs in the background.
 */
export class Process implements AsyncIterable<Output> {
  readonly info: m.ProcessInfo
  readonly #socket: WebSocket
  readonly #output: Output[] = []
  readonly #open = new Set([stdoutChannel, stderrChannel])
  readonly #unacked = new Map([
    [stdoutChannel, 0],
    [stderrChannel, 0],
  ])
  #credit = windowBytes
  #exit: m.Exit | undefined
  #error: AtollError | undefined
  #ended = false
  #inputOpen = true
  #wake: (() => void)[] = []
  #writing: Promise<void> = Promise.resolve()

  private constructor(socket: WebSocket, info: m.ProcessInfo) {
    this.info = info
    this.#socket = socket
    let heard = true
    socket.on('pong', () => {
      heard = true
    })
    const alive = setInterval(() => {
      if (!heard) return socket.terminate()
      heard = false
      socket.ping()
    }, pingMs)
    alive.unref()
    socket.on('message', (data, binary) => {
      heard = true
      this.#take(data, binary)
    })
    socket.on('close', () => {
      clearInterval(alive)
      this.#end()
    })
  }

  /** @internal */
  static async start(conn: Conn, path: string, start?: m.ExecRequest): Promise<Process> {
    const socket = await conn.websocket(path)
    return new Promise((resolve, reject) => {
      const closed = () => reject(unreachable())
      socket.once('close', closed)
      socket.once('message', (data, binary) => {
        socket.off('close', closed)
        const first = binary ? undefined : (JSON.parse((data as Buffer).toString()) as Message)
        if (first?.type !== 'started' || !first.process) {
          socket.close()
          return reject(fromProblem(first?.error) ?? unreachable())
        }
        const process = new Process(socket, first.process)
        if (start && !start.stdin && !start.tty) process.#endInput()
        resolve(process)
      })
      socket.resume()
      if (start) socket.send(JSON.stringify({ type: 'start', command: start }))
    })
  }

  get id(): string {
    return this.info.id
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Output> {
    for (;;) {
      await this.#until(() => this.#output.length > 0 || this.#open.size === 0)
      const out = this.#output.shift()
      if (!out) {
        if (this.#error && !this.#exit) throw this.#error
        return
      }
      this.#read(out)
      yield out
    }
  }

  #read(out: Output): void {
    const channel = out.stream === 'stdout' ? stdoutChannel : stderrChannel
    const n = (this.#unacked.get(channel) ?? 0) + out.data.length
    const enough = n >= windowBytes / 4 && !this.#ended
    this.#unacked.set(channel, enough ? 0 : n)
    if (enough) this.#send({ type: 'ack', channel, n })
  }

  /** Wait for the end of the command. A command that writes more than the buffers hold blocks until it is read. */
  async wait(): Promise<m.Exit> {
    await this.#until(() => this.#exit !== undefined || this.#error !== undefined)
    if (!this.#exit) throw this.#error ?? unreachable()
    return this.#exit
  }

  /** Write the input, then read all output until the command has closed it. */
  async communicate(input?: string | Uint8Array): Promise<{ stdout: Buffer; stderr: Buffer }> {
    const written = (async () => {
      if (input !== undefined && input.length > 0) await this.write(input)
      await this.closeStdin()
    })()
    written.catch(() => {}) // reading may fail first
    const stdout: Buffer[] = []
    const stderr: Buffer[] = []
    for await (const piece of this) (piece.stream === 'stdout' ? stdout : stderr).push(piece.data)
    if (!this.#exit) await written
    return { stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr) }
  }

  /** Write to the input of the command, which needs `stdin: true` or a terminal. */
  write(data: string | Uint8Array): Promise<void> {
    const bytes = Buffer.from(data)
    const done = this.#writing.then(() => this.#write(bytes))
    this.#writing = done.catch(() => {})
    return done
  }

  async #write(data: Buffer): Promise<void> {
    while (data.length > 0) {
      await this.#until(() => this.#credit > 0)
      if (this.#ended || !this.#inputOpen) throw new ConflictError('its input is closed', { op: 'process.write', subject: this.id })
      const n = Math.min(data.length, this.#credit, frameBytes)
      this.#credit -= n
      this.#socket.send(Buffer.concat([Buffer.of(stdin), data.subarray(0, n)]))
      data = data.subarray(n)
    }
  }

  /** Close the input, after the bytes written before. */
  async closeStdin(): Promise<void> {
    await this.#writing
    this.#endInput()
  }

  #endInput(): void {
    if (!this.#inputOpen) return
    this.#inputOpen = false
    this.#send({ type: 'eof', channel: stdin })
  }

  /** Send a signal, by its Linux number, to the process group of the command. */
  async signal(number: number): Promise<void> {
    this.#send({ type: 'signal', signal: number })
  }

  /** Set the size of the terminal. */
  async resize(cols: number, rows: number): Promise<void> {
    this.#send({ type: 'resize', size: { cols, rows } })
  }

  /** Close the connection. A background command keeps running, any other is killed. */
  async close(): Promise<void> {
    if (this.#ended) return
    this.#socket.close(1000)
    const late = setTimeout(() => this.#socket.terminate(), 2000)
    await this.#until(() => false)
    clearTimeout(late)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  #send(message: object): void {
    if (!this.#ended) this.#socket.send(JSON.stringify(message), () => {}) // an error closes the socket
  }

  async #until(ready: () => boolean): Promise<void> {
    while (!ready() && !this.#ended) await new Promise<void>((resolve) => this.#wake.push(resolve))
  }

  #take(data: RawData, binary: boolean): void {
    if (binary) {
      const bytes = data as Buffer
      this.#output.push({ stream: bytes[0] === stdoutChannel ? 'stdout' : 'stderr', data: bytes.subarray(1), dropped: 0 })
    } else {
      const message = JSON.parse((data as Buffer).toString()) as Message
      if (message.type === 'eof') this.#open.delete(message.channel ?? 0)
      if (message.type === 'ack') this.#credit += message.n ?? 0
      if (message.type === 'exit') this.#exit = message.exit
      if (message.type === 'error') this.#error = fromProblem(message.error) ?? unreachable()
    }
    this.#notify()
  }

  #end(): void {
    this.#ended = true
    this.#open.clear()
    if (!this.#exit) this.#error ??= unreachable()
    this.#notify()
  }

  #notify(): void {
    const waiting = this.#wake
    this.#wake = []
    for (const wake of waiting) wake()
  }
}
