/** Sessions: names that always refer to the sandbox that serves them now. */
import { randomBytes } from 'node:crypto'

import { type Conn, labelsQuery, segment } from './conn.js'
import { AtollError, StaleError } from './errors.js'
import type * as m from './models.js'
import { command, type Result, type RunOptions, toResult } from './process.js'
import { Sandbox } from './sandbox.js'

const beatMs = 30_000

export interface SessionOptions {
  /** Unique among your sessions; the id if left out. */
  name?: string
  /** Sessions of a group share one sandbox. */
  group?: string
  labels?: Record<string, string>
  /** Pause the sandbox, instead of ending it, when no holder is left. */
  pauseOnExit?: boolean
  /** `on-turn` records the desktop in every turn that uses it, until the turn is released. */
  record?: 'manual' | 'on-turn'
  /** Return the session of that name if there is one. */
  attachIfExists?: boolean
  /** Keep holding the sandbox even if this program ends without a release. */
  turn?: boolean
}

/**
 * A handle on a session: the methods of the sandbox that serves it, which it holds until it is released or closed.
 *
 * If another sandbox has taken its place, methods throw StaleError and have no effect until acquire is called. `await using`
 * releases the sandbox; destroy removes the session. Dropping it does not end the session.
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

  /** The state at the time of the last request; see refreshSession. */
  get session(): m.Session {
    return this.#session
  }

  /** The receipt of the last acquisition: whether the sandbox existed, and what was lost. */
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

  /** Hold the sandbox that serves the session now, even if it is another one than before. */
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
        if (this.#beat) await this.#acquire(epoch) // the machine may have been suspended
      }
    } catch (e) {
      if (e instanceof StaleError) this.#letGo()
      else if (!(e instanceof AtollError)) throw e // otherwise the next heartbeat may succeed
    }
  }

  #letGo(): void {
    clearInterval(this.#beat)
    this.#beat = undefined
    delete this.conn.headers['Atoll-Epoch']
    delete this.conn.headers['Atoll-Follow']
  }

  /** Stop holding the sandbox. If it has no other holder, it is saved and ended after a while. */
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

  /** Remove the session with its sandbox and its saved files. Workspaces are kept. */
  override async destroy(): Promise<void> {
    this.#letGo()
    await this.conn.call('DELETE', this.base)
  }

  /** Save the workspaces or, without workspaces, the files of the sandbox. */
  save(): Promise<m.Saved> {
    return this.conn.call('POST', `${this.base}/save`)
  }

  /** A description without secrets, from which the sandbox can be found again or rebuilt. */
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
 * program ends without a release. Without a turn, it is released 90 seconds after that.
 */
export class Sessions {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  async create(spec: m.Spec = {}, o: SessionOptions = {}): Promise<Session> {
    const holder = newHolder(o.turn)
    const json: m.NewSession = {
      spec,
      name: o.name,
      group: o.group,
      labels: o.labels,
      pauseOnExit: o.pauseOnExit,
      record: o.record,
      holder,
    }
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

  /** A session without holding its sandbox. Each call goes to the sandbox that serves it at that time. */
  async get(ref: string, o: { turn?: boolean } = {}): Promise<Session> {
    return new Session(this.#conn, await this.#conn.call('GET', `/v1/sessions/${segment(ref)}`), newHolder(o.turn))
  }

  async list(labels?: Record<string, string>): Promise<m.Session[]> {
    return (await this.#conn.call<m.SessionsOutputBody>('GET', '/v1/sessions', { query: { label: labelsQuery(labels) } })).sessions ?? []
  }

  /** Remove a session with its sandbox and its saved files. Workspaces are kept. */
  async remove(ref: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/sessions/${segment(ref)}`)
  }

  /** How long the sandboxes of sessions existed, by "label:KEY", "group" or "provider". */
  async usage(by: string, o: { from?: Date; to?: Date } = {}): Promise<m.SessionUsage[]> {
    const query = { by, from: o.from?.toISOString(), to: o.to?.toISOString() }
    return (await this.#conn.call<m.SessionUsageOutputBody>('GET', '/v1/usage', { query })).usage ?? []
  }
}

function newHolder(turn = false): m.HolderRef {
  return { kind: turn ? 'turn' : 'operator', holder: `client-${randomBytes(13).toString('hex')}` }
}
