/** Sandboxes. */
import { Duplex } from 'node:stream'
import type { WebSocket } from 'ws'

import { type CodeOptions, type Execution, runCode } from './code.js'
import { type Conn, segment } from './conn.js'
import { Files } from './files.js'
import { Git } from './git.js'
import type * as m from './models.js'
import { command, type ExecOptions, type Output, Process, type Result, type RunOptions, toResult } from './process.js'
import { Terminal, type TerminalOptions } from './terminal.js'

/** A handle on a sandbox. Dropping it does not end the sandbox; `await using` destroys it. */
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

  /** The state at the time of the last request; see refresh. */
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
   * Run a command and return its output. An array is a program with its arguments, a string a script for /bin/sh. A nonzero
   * exit code is no error, nor is the end of the timeout.
   */
  async run(args: string | readonly string[], o: RunOptions = {}): Promise<Result> {
    return toResult(await this.conn.call('POST', `${this.base}/exec`, { json: command(args, o), signal: o.signal }))
  }

  /** Start a command with live streams. */
  exec(args: string | readonly string[], o: ExecOptions = {}): Promise<Process> {
    return Process.start(this.conn, `${this.base}/exec`, command(args, o))
  }

  /**
   * Connect to a background command, or to one with a hold. Output continues after the given number of bytes of each stream. If
   * that output is lost, it begins with the oldest byte kept; with `skip: false` this is ExhaustedError.
   */
  attach(process: string, o: { stdout?: number; stderr?: number; skip?: boolean } = {}): Promise<Process> {
    const query = new URLSearchParams({ stdout: String(o.stdout ?? 0), stderr: String(o.stderr ?? 0), skip: String(o.skip !== false) })
    return Process.start(this.conn, `${this.#process(process)}/attach?${query.toString()}`)
  }

  #process(process: string): string {
    return `${this.base}/processes/${segment(process)}`
  }

  /** The commands that were started in the sandbox, oldest first. */
  async processes(): Promise<m.ProcessInfo[]> {
    return (await this.conn.call<m.ProcessesOutputBody>('GET', `${this.base}/processes`)).processes ?? []
  }

  /** Send a signal, by its Linux number, to the process group of a command. */
  async signal(process: string, number: number): Promise<void> {
    await this.conn.call('POST', `${this.#process(process)}/signal`, { json: { signal: number } })
  }

  /** The log of a background command. */
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

  /** End the sandbox and delete everything in it. One that is already gone is success. */
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

  /** A token for the header Atoll-Token. It gives its bearer access to ports (all if none is named) at their portURL. */
  portToken(ports: readonly number[] = [], o: { expiresMs?: number } = {}): Promise<m.PortToken> {
    return this.conn.call('POST', `${this.base}/port-tokens`, { json: { ...(ports.length > 0 && { ports }), expiresMs: o.expiresMs } })
  }

  /** The URL of an HTTP server on a port, for requests with a token. The daemon must listen on TCP, otherwise this is UnsupportedError. */
  async portURL(port: number): Promise<string> {
    return this.conn.address.portURL(port, this.id)
  }

  /** Have the daemon's machine listen on a port (any that is free if none is named) and forward its connections to a port inside. */
  publish(port: number, o: { hostPort?: number; address?: string } = {}): Promise<m.PublishedPort> {
    return this.conn.call('POST', `${this.base}/published-ports`, { json: { port, ...o } })
  }

  /** Stop listening on a port of the daemon's machine. */
  async unpublish(hostPort: number): Promise<void> {
    await this.conn.call('DELETE', `${this.base}/published-ports/${hostPort}`)
  }

  /** A URL of the provider for an HTTP server on a port, with a token unless it is public. Many have none: UnsupportedError. */
  preview(port: number, o: { public?: boolean } = {}): Promise<m.Preview> {
    return this.conn.call('POST', `${this.base}/previews`, { json: { port, ...o } })
  }

  /** Take back the provider's URL of a port. A port without one is success. */
  async unpreview(port: number): Promise<void> {
    await this.conn.call('DELETE', `${this.base}/previews/${port}`)
  }

  /** The ports with a URL of the provider, without tokens. */
  async previews(): Promise<m.Preview[]> {
    return (await this.conn.call<m.PreviewsOutputBody>('GET', `${this.base}/previews`)).previews ?? []
  }

  /** Open the sandbox to viewers. Whoever has the token, until it expires, may connect to the URL. */
  openStream(stream: m.NewStream): Promise<m.StreamAccess> {
    return this.conn.call('POST', `${this.base}/streams`, { json: stream })
  }

  /** A new token for a stream. One of a session then shows the sandbox that serves the session. */
  renewStream(id: string, o: { ttl?: number } = {}): Promise<m.StreamAccess> {
    return this.conn.call('POST', `${this.base}/streams/${segment(id)}/token`, { json: o })
  }

  /** The streams of the sandbox, with their numbers of viewers. */
  async streams(): Promise<m.Stream[]> {
    return (await this.conn.call<m.StreamsOutputBody>('GET', `${this.base}/streams`)).streams ?? []
  }

  /** End a stream and disconnect its viewers. */
  async revokeStream(id: string): Promise<void> {
    await this.conn.call('DELETE', `${this.base}/streams/${segment(id)}`)
  }

  /**
   * Execute code in the code interpreter, which keeps variables from one call to the next. An exception of the code is in the
   * execution and is not thrown.
   */
  runCode(code: string, o: CodeOptions = {}): Promise<Execution> {
    return runCode(this.conn, `${this.base}/code`, code, o)
  }

  /** The git repository that a directory is in; if left out, the working directory of the sandbox. */
  git(path?: string): Git {
    return new Git(this.conn, this.base, path)
  }

  /**
   * Record a terminal: the login shell that viewers share, or that of a background command. With kind desktop, record the desktop, which is
   * started if it does not run. The recording goes on without the caller. Client.recordings stops and reads it.
   */
  record(o: m.NewRecording = {}): Promise<m.Recording> {
    return this.conn.call('POST', `${this.base}/recordings`, { json: o })
  }

  /** The contexts of the code interpreter, with the default ones of the languages that were used. */
  async codeContexts(): Promise<m.CodeContext[]> {
    return (await this.conn.call<m.ContextsOutputBody>('GET', `${this.base}/code/contexts`)).contexts ?? []
  }

  /** Make a context with variables of its own. */
  createCodeContext(o: m.NewCodeContext = {}): Promise<m.CodeContext> {
    return this.conn.call('POST', `${this.base}/code/contexts`, { json: o })
  }

  /** Forget the variables of a context. */
  async restartCodeContext(id: string): Promise<void> {
    await this.conn.call('POST', `${this.base}/code/contexts/${segment(id)}/restart`)
  }

  /** Interrupt what a context executes. Its variables stay. */
  async interruptCodeContext(id: string): Promise<void> {
    await this.conn.call('POST', `${this.base}/code/contexts/${segment(id)}/interrupt`)
  }

  /** End a context. The default one of a language is made again when that is used. */
  async removeCodeContext(id: string): Promise<void> {
    await this.conn.call('DELETE', `${this.base}/code/contexts/${segment(id)}`)
  }

  /** Open a terminal that viewers share: a login shell in the workspace, or the terminal of a background command. */
  terminal(o: TerminalOptions = {}): Promise<Terminal> {
    return Terminal.open(this.conn, this.base, o)
  }

  /** Start the desktop, unless one of that size runs. Another size ends the programs on it. */
  startDesktop(screen: { width?: number; height?: number; dpi?: number } = {}): Promise<m.DesktopState> {
    return this.conn.call('PUT', `${this.base}/desktop`, { json: screen })
  }

  /** Look at the desktop, or use its mouse and keyboard, in order. It is started if it does not run. */
  computer(actions: m.ComputerAction[], o: { readOnly?: boolean } = {}): Promise<m.ComputerResult> {
    return this.conn.call('POST', `${this.base}/computer`, { json: { actions, ...o } })
  }

  /** The text of the clipboard of the desktop, empty if there is none. */
  async clipboard(): Promise<string> {
    return (await this.computer([{ action: 'clipboard' }])).clipboard ?? ''
  }

  /** Put a text into the clipboard of the desktop, at most 1 MiB. Programs there paste it. */
  async setClipboard(text: string): Promise<void> {
    await this.computer([{ action: 'copy', text }])
  }

  /** A picture of the desktop, as a PNG image. */
  async screenshot(): Promise<Buffer> {
    return Buffer.from((await this.computer([{ action: 'screenshot' }])).screenshot?.png ?? '', 'base64')
  }

  /** Connect to a TCP port from the sandbox's own loopback. */
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
  socket.resume()
  return stream
}
