/** Sandboxes. */
import { Duplex } from 'node:stream'
import type { WebSocket } from 'ws'

import { type Conn, segment } from './conn.js'
import { Files } from './files.js'
import type * as m from './models.js'
import { command, type ExecOptions, type Output, Process, type Result, type RunOptions, toResult } from './process.js'

/** A handle on a sandbox. Dropping it ends nothing; `await using` destroys the sandbox. */
export class Sandbox {
  readonly files: Files
  /** @internal */
  protected readonly conn: Conn
  /** @internal */
  protected readonly base: string
  #info: m.Sandbox

  /** @internal */
  constructor(conn: Conn, info: m.Sandbox, base = `/v1/sandboxes/${segment(info.id)}`) {
    this.conn = conn
    this.base = base
    this.#info = info
    this.files = new Files(conn, base)
  }

  get id(): string {
    return this.#info.id
  }

  get name(): string {
    return this.#info.name
  }

  /** What was known when it was last asked for; see refresh. */
  get info(): m.Sandbox {
    return this.#info
  }

  async #change(method: string, rest: string, json?: unknown): Promise<m.Sandbox> {
    this.#info = await this.conn.call<m.Sandbox>(method, this.base + rest, { json })
    return this.#info
  }

  refresh(): Promise<m.Sandbox> {
    return this.#change('GET', '')
  }

  /**
   * Run a command and return what it wrote. An array is a program with its arguments, a string a script for /bin/sh. A command
   * that fails is no error, nor is one that its timeout ended.
   */
  async run(args: string | readonly string[], o: RunOptions = {}): Promise<Result> {
    return toResult(await this.conn.call('POST', `${this.base}/exec`, { json: command(args, o), signal: o.signal }))
  }

  /** Start a command with live streams. */
  exec(args: string | readonly string[], o: ExecOptions = {}): Promise<Process> {
    return Process.start(this.conn, `${this.base}/exec`, command(args, o))
  }

  /**
   * Connect to a command in the background, or to one with a hold. Output goes on after so many bytes of each stream; where that
   * is not kept any more, with the oldest byte kept, or with `skip: false` as ExhaustedError.
   */
  attach(process: string, o: { stdout?: number; stderr?: number; skip?: boolean } = {}): Promise<Process> {
    const query = new URLSearchParams({ stdout: String(o.stdout ?? 0), stderr: String(o.stderr ?? 0), skip: String(o.skip !== false) })
    return Process.start(this.conn, `${this.#process(process)}/attach?${query.toString()}`)
  }

  #process(process: string): string {
    return `${this.base}/processes/${segment(process)}`
  }

  /** The commands that were started, oldest first. */
  async processes(): Promise<m.ProcessInfo[]> {
    return (await this.conn.call<m.ProcessesOutputBody>('GET', `${this.base}/processes`)).processes ?? []
  }

  /** Signal a command and all it started, by the Linux number. */
  async signal(process: string, number: number): Promise<void> {
    await this.conn.call('POST', `${this.#process(process)}/signal`, { json: { signal: number } })
  }

  /** What a command in the background wrote. */
  async *logs(process: string, o: { tail?: number; follow?: boolean; signal?: AbortSignal } = {}): AsyncGenerator<Output> {
    const query = { tail: o.tail || undefined, follow: o.follow }
    const lines = this.conn.lines<{ stream: number; data?: string; dropped?: number }>(`${this.#process(process)}/logs`, {
      query,
      signal: o.signal,
    })
    for await (const l of lines) {
      yield { stream: l.stream === 1 ? 'stdout' : 'stderr', data: Buffer.from(l.data ?? '', 'base64'), dropped: l.dropped ?? 0 }
    }
  }

  /** Wait until the sandbox has ended. */
  wait(): Promise<m.Exit> {
    return this.conn.call('GET', `${this.base}/wait`)
  }

  /** End all commands and keep the files. */
  stop(o: { graceMs?: number } = {}): Promise<m.Sandbox> {
    return this.#change('POST', '/stop', { graceMs: o.graceMs ?? 0 })
  }

  /** Start a sandbox that was stopped. */
  start(): Promise<m.Sandbox> {
    return this.#change('POST', '/start')
  }

  /** Freeze the sandbox, in memory or on disk. */
  pause(o: { toDisk?: boolean } = {}): Promise<m.Sandbox> {
    return this.#change('POST', '/pause', { toDisk: o.toDisk === true })
  }

  resume(): Promise<m.Sandbox> {
    return this.#change('POST', '/resume')
  }

  /** Change labels, lifetime or resources. */
  update(change: m.Change): Promise<m.Sandbox> {
    return this.#change('PATCH', '', change)
  }

  /** End the sandbox with everything in it. One that is gone is success. */
  async destroy(): Promise<void> {
    await this.conn.call('DELETE', this.base)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.destroy()
  }

  snapshot(request: m.SnapshotRequest = {}): Promise<m.Snapshot> {
    return this.conn.call('POST', `${this.base}/snapshots`, { json: request })
  }

  /** Copies of the running sandbox, with its processes and memory. */
  async fork(count = 1, o: { prefix?: string; labels?: Record<string, string> } = {}): Promise<Sandbox[]> {
    const out = await this.conn.call<m.ForkOutputBody>('POST', `${this.base}/fork`, { json: { count, ...o } })
    const plain = this.conn.plain()
    return (out.sandboxes ?? []).map((info) => new Sandbox(plain, info))
  }

  usage(): Promise<m.SandboxUsage> {
    return this.conn.call('GET', `${this.base}/usage`)
  }

  /** A token for the header Atoll-Token with which anybody reaches ports (all if none is named) at their portURL. */
  portToken(ports: readonly number[] = [], o: { expiresMs?: number } = {}): Promise<m.PortToken> {
    return this.conn.call('POST', `${this.base}/port-tokens`, { json: { ...(ports.length > 0 && { ports }), expiresMs: o.expiresMs } })
  }

  /** Where an HTTP server on a port is shown to whoever sends a token. The daemon must listen on TCP; else this is UnsupportedError. */
  async portURL(port: number): Promise<string> {
    return this.conn.address.portURL(port, this.id)
  }

  /** Connect to a TCP port, as a program inside would at localhost. */
  async dial(port: number): Promise<Duplex> {
    return tunnel(await this.conn.websocket(`${this.base}/ports/${port}`))
  }
}

const tunnelBytes = 32 << 10

/** A stream over a WebSocket in which an empty message ends a direction. */
function tunnel(socket: WebSocket): Duplex {
  let ended = false
  const stream = new Duplex({
    allowHalfOpen: true,
    read: () => socket.resume(),
    write(chunk: Buffer, _encoding, done) {
      for (let i = tunnelBytes; i < chunk.length; i += tunnelBytes) socket.send(chunk.subarray(i - tunnelBytes, i))
      socket.send(chunk.subarray(Math.floor((chunk.length - 1) / tunnelBytes) * tunnelBytes), done)
    },
    final: (done) => socket.send('', { binary: true }, () => done()),
    destroy(error, done) {
      socket.close()
      done(error)
    },
  })
  socket.on('message', (data: Buffer) => {
    if (data.length === 0) {
      ended = true
      stream.push(null)
    } else if (!stream.push(data)) {
      socket.pause()
    }
  })
  socket.on('close', () => {
    if (ended) stream.end()
    else stream.destroy(new Error('the connection broke off'))
  })
  return stream
}
