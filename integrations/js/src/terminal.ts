/** Terminals that viewers share. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { WebSocket } from 'ws'

import type { Conn } from './conn.js'
import { type AtollError, ConflictError, GoneError, NotFoundError, StaleError, UnauthorizedError, UnavailableError } from './errors.js'
import type * as m from './models.js'

export interface TerminalOptions {
  /** A background command on a terminal. A login shell in the workspace if left out, which is started if it does not run. */
  process?: string
  /** Show the terminal without the right to type. */
  watch?: boolean
  /** The size of the viewer's window; 80 by 24 if left out. */
  size?: m.WindowSize
}

interface Message {
  type: string
  terminal?: string
  offset?: number
  input?: number
  exit?: m.Exit
}

const maxTyped = 256 << 10
const maxTypedMessage = 16 << 10
const maxUnread = 1 << 20
const searchMs = 60_000
const pauseMs = 200

function ended(reason: string): AtollError {
  const text = `the terminal was closed: ${reason}`
  switch (reason) {
    case 'unauthorized':
    case 'revoked':
    case 'grant-revoked':
      return new UnauthorizedError(text, { op: 'stream.view' })
    case 'taken-over':
      return new ConflictError('another connection has taken over the command', { op: 'stream.view' })
    case 'box-rollover':
      return new StaleError('another sandbox serves the session now', { op: 'stream.view' })
  }
  return new GoneError(text, { op: 'stream.view' })
}

/**
 * One viewer of a terminal that others may view too. Iterating over it yields what draws the current screen, then the output.
 * When the connection is lost, it is made again for a minute, and no byte is lost or repeated in either direction.
 */
export class Terminal implements AsyncIterable<Buffer> {
  readonly #conn: Conn
  readonly #base: string
  readonly #options: TerminalOptions
  readonly #client = randomUUID()
  #access: m.StreamAccess
  #size: m.WindowSize
  #socket: WebSocket | undefined
  #ready = false // the daemon has said how the output goes on
  #picture = false // the next binary message is the screen
  #terminal = ''
  #offset = 0
  #typed = Buffer.alloc(0) // input that has not arrived
  #arrived = 0
  #unread: Buffer[] = []
  #unreadBytes = 0
  #exit: m.Exit | undefined
  #error: AtollError | undefined
  #closed = false
  #wake: (() => void)[] = []

  private constructor(conn: Conn, base: string, options: TerminalOptions, access: m.StreamAccess) {
    this.#conn = conn
    this.#base = base
    this.#options = options
    this.#access = access
    this.#size = options.size ?? { cols: 80, rows: 24 }
  }

  /** @internal */
  static async open(conn: Conn, base: string, options: TerminalOptions): Promise<Terminal> {
    const terminal = new Terminal(conn, base, options, await request(conn, base, options, options.process))
    await terminal.#connect()
    return terminal
  }

  /** The stream of this viewer. */
  get stream(): m.Stream {
    return this.#access
  }

  /** The command in the terminal. */
  get process(): string {
    return this.#access.process ?? ''
  }

  async #connect(): Promise<void> {
    const socket = await this.#conn.websocket(this.#access.url)
    this.#socket = socket
    this.#ready = this.#picture = false
    socket.on('message', (data, binary) => {
      this.#take(data as Buffer, binary)
    })
    socket.on('close', (code, reason) => {
      if (code === 1008) this.#error ??= ended(reason.toString())
      this.#ready = false
      if (this.#over()) this.#notify()
      else void this.#again()
    })
    socket.resume()
    socket.send(JSON.stringify({ token: this.#access.token }))
    const at = { client: this.#client, terminal: this.#terminal, offset: this.#offset }
    socket.send(JSON.stringify({ type: 'join', size: this.#size, ...at }))
  }

  async #again(): Promise<void> {
    const until = Date.now() + searchMs
    while (!this.#over()) {
      try {
        try {
          this.#access = await this.#conn.call('POST', `${this.#base}/streams/${this.#access.id}/token`, { json: {} })
        } catch (e) {
          if (!(e instanceof NotFoundError)) throw e
          this.#access = await request(this.#conn, this.#base, this.#options, this.process) // another daemon
        }
        return await this.#connect()
      } catch (e) {
        if (!(e instanceof UnavailableError) || Date.now() > until) this.#error = e as AtollError
        else await sleep(pauseMs)
      }
    }
    this.#notify()
  }

  #take(data: Buffer, binary: boolean): void {
    if (binary) {
      if (!this.#picture) this.#offset += data.length
      this.#picture = false
      this.#unread.push(data)
      this.#unreadBytes += data.length
      if (this.#unreadBytes > maxUnread) this.#socket?.pause()
      return this.#notify()
    }
    const message = JSON.parse(data.toString()) as Message
    switch (message.type) {
      case 'screen':
        this.#picture = true
        if (message.terminal === undefined) this.#offset = message.offset ?? 0
        else this.#begin(message)
        break
      case 'resume':
        this.#begin(message)
        break
      case 'input':
        this.#acknowledge(message.input ?? 0)
        break
      case 'exit':
        this.#exit = message.exit
        break
    }
    this.#notify()
  }

  /** Send the input that has not arrived over a new connection. */
  #begin(message: Message): void {
    if (this.#terminal && message.terminal !== this.#terminal) this.#arrived = 0
    else this.#acknowledge(message.input ?? 0)
    this.#terminal = message.terminal ?? ''
    this.#offset = message.offset ?? 0
    this.#ready = true
    this.#send(this.#typed)
  }

  #acknowledge(n: number): void {
    const more = Math.min(n - this.#arrived, this.#typed.length)
    if (more <= 0) return
    this.#typed = this.#typed.subarray(more)
    this.#arrived += more
  }

  #send(data: Buffer): void {
    for (let i = 0; i < data.length && this.#ready; i += maxTypedMessage) this.#socket?.send(data.subarray(i, i + maxTypedMessage))
  }

  /** Type. Without the right to, it is dropped. */
  async write(data: string | Uint8Array): Promise<void> {
    if (this.#options.watch) return
    const bytes = Buffer.from(data)
    for (let i = 0; i < bytes.length; i += maxTypedMessage) {
      const part = bytes.subarray(i, i + maxTypedMessage)
      await this.#until(() => this.#typed.length + part.length <= maxTyped)
      if (this.#over()) throw this.#error ?? new ConflictError('the terminal has ended', { op: 'stream.view' })
      this.#typed = Buffer.concat([this.#typed, part])
      this.#send(part)
    }
  }

  /** Set the size of the viewer's window. The terminal's is that of the smallest window of those who may type. */
  async resize(size: m.WindowSize): Promise<void> {
    this.#size = size
    if (this.#ready) this.#socket?.send(JSON.stringify({ type: 'size', size }))
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    for (;;) {
      await this.#until(() => this.#unread.length > 0)
      const out = this.#unread.shift()
      if (!out) {
        if (this.#error && !this.#closed) throw this.#error
        return
      }
      this.#unreadBytes -= out.length
      if (this.#unreadBytes <= maxUnread) this.#socket?.resume()
      yield out
    }
  }

  /** Wait for the end of the command. What is shown meanwhile must be read. */
  async wait(): Promise<m.Exit> {
    await this.#until(() => false)
    if (!this.#exit) throw this.#error ?? new ConflictError('the terminal was closed', { op: 'stream.view' })
    return this.#exit
  }

  /** Leave the terminal. What runs in it goes on. */
  async close(): Promise<void> {
    this.#closed = true
    this.#socket?.close()
    this.#notify()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  #over(): boolean {
    return this.#closed || this.#exit !== undefined || this.#error !== undefined
  }

  #notify(): void {
    const waiting = this.#wake
    this.#wake = []
    for (const wake of waiting) wake()
  }

  async #until(done: () => boolean): Promise<void> {
    while (!done() && !this.#over()) await new Promise<void>((resolve) => this.#wake.push(resolve))
  }
}

function request(conn: Conn, base: string, o: TerminalOptions, process?: string): Promise<m.StreamAccess> {
  return conn.call('POST', `${base}/streams`, { json: { kind: 'terminal', mode: o.watch ? 'view' : 'control', process, size: o.size } })
}
