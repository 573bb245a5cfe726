/** Sessions: names that always lead to the sandbox that serves them now. */
import { randomBytes } from 'node:crypto'

import { type Conn, labelsQuery, segment } from './conn.js'
import { AtollError, StaleError } from './errors.js'
import type * as m from './models.js'
import { command, type Result, type RunOptions, toResult } from './process.js'
import { Sandbox } from './sandbox.js'

const beatMs = 30_000

export interface SessionOptions {
  /** Unique among your sessions; made up if left out. */
  name?: string
  /** Sessions of a group share one sandbox. */
  group?: string
  labels?: Record<string, string>
  /** Pause the sandbox instead of ending it when nobody needs it. */
  pauseOnExit?: boolean
  /** Return the session of that name if there is one. */
  attachIfExists?: boolean
  /** Hold the sandbox even when this program ends without a release. */
  turn?: boolean
}

/**
 * A handle on a session: the methods of the sandbox that serves it, which it holds until it is released or closed.
 *
 * When another sandbox has taken its place, methods are StaleError and have no effect, until acquire was called. `await using`
 * releases the sandbox; destroy removes the session. Dropping it ends nothing.
 */
export class Session extends Sandbox {
  readonly #holder: m.HolderRef
  #session: m.Session
  #receipt: m.Receipt | undefined
  #beat: NodeJS.Timeout | undefined

  /** @internal */
  constructor(conn: Conn, session: m.Session, holder: m.HolderRef) {
    const info = { id: session.id, name: session.name, state: 'running', image: '', created: session.created } as m.Sandbox
    super(conn.plain(), info, `/v1/sessions/${segment(session.id)}`)
    this.#session = session
    this.#holder = holder
  }

  /** What was known when it was last asked for; see refreshSession. */
  get session(): m.Session {
    return this.#session
  }

  /** What the last acquisition got, and what was lost. */
  get receipt(): m.Receipt | undefined {
    return this.#receipt
  }

  /** The sandbox that serves the session. */
  override async refresh(): Promise<m.Sandbox> {
    const receipt = this.#receipt ?? (await this.acquire())
    return this.conn.call('GET', `/v1/sandboxes/${segment(receipt.sandbox)}`)
  }

  async refreshSession(): Promise<m.Session> {
    this.#session = await this.conn.call<m.Session>('GET', this.base)
    return this.#session
  }

  /** Hold the sandbox that serves the session now, whichever that is. */
  acquire(): Promise<m.Receipt> {
    return this.#acquire()
  }

  async #acquire(epoch?: number): Promise<m.Receipt> {
    const out = await this.conn.call<m.Acquired>('POST', `${this.base}/acquire`, { json: { ...this.#holder, epoch } })
    this.held(out.receipt)
    return out.receipt
  }

  /** @internal */
  held(receipt: m.Receipt): void {
    this.#receipt = receipt
    this.conn.headers['Atoll-Epoch'] = String(receipt.epoch)
    this.conn.headers['Atoll-Follow'] = 'true'
    this.#beat ??= setInterval(() => void this.#alive(), beatMs).unref()
  }

  async #alive(): Promise<void> {
    const epoch = this.#receipt?.epoch
    try {
      try {
        await this.conn.call('POST', `${this.base}/heartbeat`, { json: { ...this.#holder, epoch } })
      } catch (e) {
        if (!(e instanceof StaleError)) throw e
        if (this.#beat) await this.#acquire(epoch) // the machine slept, perhaps
      }
    } catch (e) {
      if (e instanceof StaleError) this.#letGo()
      else if (!(e instanceof AtollError)) throw e // else the next one may be heard
    }
  }

  #letGo(): void {
    clearInterval(this.#beat)
    this.#beat = undefined
    delete this.conn.headers['Atoll-Epoch']
    delete this.conn.headers['Atoll-Follow']
  }

  /** Let go of the sandbox, which is saved and ended after a while unless others hold it. */
  async release(): Promise<void> {
    this.#letGo()
    await this.conn.call('POST', `${this.base}/release`, { json: this.#holder })
  }

  /** Release, if it holds the sandbox. */
  async close(): Promise<void> {
    if (this.#beat) await this.release()
  }

  override async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  /** Remove the session with its sandbox and what was saved of it. Workspaces stay. */
  override async destroy(): Promise<void> {
    this.#letGo()
    await this.conn.call('DELETE', this.base)
  }

  /** Save the workspaces, or the files of a sandbox without any. */
  save(): Promise<m.Saved> {
    return this.conn.call('POST', `${this.base}/save`)
  }

  /** JSON without secrets from which the sandbox is found again or rebuilt. */
  envelope(): Promise<m.Envelope> {
    return this.conn.call('GET', `${this.base}/envelope`)
  }

  /** The providers that the session can move to, and those that it cannot, with reasons. */
  async targets(): Promise<m.SessionTarget[]> {
    return (await this.conn.call<m.TargetsOutputBody>('GET', `${this.base}/targets`)).targets ?? []
  }

  /** Move the session to another provider with its files. */
  async swap(target: string): Promise<m.Swapped> {
    const out = await this.conn.call<m.Swapped>('POST', `${this.base}/swap`, { json: { target } })
    if (out.receipt && this.#beat) this.held(out.receipt)
    return out
  }

  /** Run a command on another provider with a copy of the files. */
  async runOn(target: string, args: string | readonly string[], o: RunOptions = {}): Promise<Result> {
    return toResult(await this.conn.call('POST', `${this.base}/run-on`, { json: { target, command: command(args, o) }, signal: o.signal }))
  }

  async updateSession(change: m.SessionChange): Promise<m.Session> {
    this.#session = await this.conn.call<m.Session>('PATCH', this.base, { json: change })
    return this.#session
  }

  override async portURL(port: number): Promise<string> {
    const receipt = this.#receipt ?? (await this.acquire())
    return this.conn.address.portURL(port, receipt.sandbox)
  }
}

/**
 * The sessions of a daemon. Those that are created, attached and resumed hold their sandbox. A turn holds it even when this
 * program ends without a release; otherwise it is let go of 90 seconds after that.
 */
export class Sessions {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  async create(spec: m.Spec = {}, o: SessionOptions = {}): Promise<Session> {
    const holder = newHolder(o.turn)
    const json: m.NewSession = { spec, name: o.name, group: o.group, labels: o.labels, pauseOnExit: o.pauseOnExit, holder }
    if (o.attachIfExists) json.ifExists = 'attach'
    return this.#opened(await this.#conn.call('POST', '/v1/sessions', { json }), holder)
  }

  /** The session of an envelope, with the sandbox that it names or one that is rebuilt. */
  async resume(envelope: m.Envelope, o: { name?: string; turn?: boolean } = {}): Promise<Session> {
    const holder = newHolder(o.turn)
    return this.#opened(await this.#conn.call('POST', '/v1/sessions/resume', { json: { envelope, name: o.name, holder } }), holder)
  }

  #opened(out: m.Opened, holder: m.HolderRef): Session {
    const session = new Session(this.#conn, out.session, holder)
    if (out.receipt) session.held(out.receipt)
    return session
  }

  /** Acquire the sandbox of a session, by its name or id. */
  async attach(ref: string, o: { turn?: boolean } = {}): Promise<Session> {
    const session = await this.get(ref, o)
    await session.acquire()
    return session
  }

  /** A session that holds nothing yet: each use goes to the sandbox that serves it then. */
  async get(ref: string, o: { turn?: boolean } = {}): Promise<Session> {
    return new Session(this.#conn, await this.#conn.call('GET', `/v1/sessions/${segment(ref)}`), newHolder(o.turn))
  }

  async list(labels?: Record<string, string>): Promise<m.Session[]> {
    return (await this.#conn.call<m.SessionsOutputBody>('GET', '/v1/sessions', { query: { label: labelsQuery(labels) } })).sessions ?? []
  }

  /** Remove a session with its sandbox and what was saved of it. Workspaces stay. */
  async remove(ref: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/sessions/${segment(ref)}`)
  }

  /** For how long sessions had sandboxes, by "label:KEY", "group" or "provider". */
  async usage(by: string, o: { from?: Date; to?: Date } = {}): Promise<m.SessionUsage[]> {
    const query = { by, from: o.from?.toISOString(), to: o.to?.toISOString() }
    return (await this.#conn.call<m.SessionUsageOutputBody>('GET', '/v1/usage', { query })).usage ?? []
  }
}

function newHolder(turn = false): m.HolderRef {
  return { kind: turn ? 'turn' : 'operator', holder: `client-${randomBytes(13).toString('hex')}` }
}
