/** A connection to a daemon. */
import { randomUUID } from 'node:crypto'

import { Address, startDaemon } from './address.js'
import { Conn, labelsQuery, segment } from './conn.js'
import { GoneError, NotFoundError, UnavailableError, unreachable } from './errors.js'
import type * as m from './models.js'
import { Sandbox } from './sandbox.js'
import { Sessions } from './session.js'

export interface ConnectOptions {
  /** `https://host:port`, `http://host:port` or `unix:///path`; $ATOLL_HOST if left out, else the local daemon. */
  host?: string
  /** An API key, which the local socket does not need; $ATOLL_KEY if host is left out too. */
  key?: string
  /** The tenant to act in. Only the owner of the machine may name one other than their own. */
  tenant?: string
}

/** The daemon at host, else at $ATOLL_HOST, else the local one, which is started if none runs. */
export async function connect(o: ConnectOptions = {}): Promise<Client> {
  const client = new Client(o)
  if (client.named) return client
  try {
    if (!(await client.answers())) {
      try {
        await startDaemon()
      } catch (e) {
        if (!(await client.answers())) throw e // unless another process has started one meanwhile
      }
      await client.ping()
    }
    return client
  } catch (e) {
    await client.close()
    throw e
  }
}

export interface EventQuery {
  /** Only events with a higher seq. */
  after?: number
  sandbox?: string
  types?: readonly string[]
  ops?: readonly string[]
  since?: Date
  until?: Date
  /** Then follow new events as they happen. */
  follow?: boolean
  signal?: AbortSignal
}

/** A connection to a daemon, which connects when it is first used. See connect for one that finds or starts the daemon. */
export class Client {
  readonly sessions: Sessions
  readonly workspaces: Workspaces
  readonly profiles: Profiles
  readonly secrets: Secrets
  readonly snapshots: Snapshots
  readonly recordings: Recordings
  /** The daemon's address was given; otherwise it is the local daemon. */
  readonly named: boolean
  readonly #conn: Conn

  constructor(o: ConnectOptions = {}) {
    const address = Address.find(o.host, o.key, o.tenant)
    this.named = address.named
    this.#conn = new Conn(address)
    this.sessions = new Sessions(this.#conn)
    this.workspaces = new Workspaces(this.#conn)
    this.profiles = new Profiles(this.#conn)
    this.secrets = new Secrets(this.#conn)
    this.snapshots = new Snapshots(this.#conn)
    this.recordings = new Recordings(this.#conn)
  }

  /** Close the connections. Sandboxes keep running. */
  async close(): Promise<void> {
    await this.#conn.close()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  /** Check that a daemon answers, otherwise throw UnavailableError. */
  async ping(): Promise<void> {
    await this.#conn.call('GET', '/healthz')
  }

  async answers(): Promise<boolean> {
    try {
      await this.ping()
      return true
    } catch (e) {
      if (e instanceof UnavailableError) return false
      throw e
    }
  }

  /**
   * Make a sandbox, which lives until it is destroyed or its lifetime ends. A repeated call with the same idempotencyKey returns
   * the same sandbox. Without a key, an aborted call has the daemon give up, and removes the sandbox that it may have made.
   */
  async create(spec: m.CreateRequest = {}, o: { idempotencyKey?: string; signal?: AbortSignal } = {}): Promise<Sandbox> {
    const ask = { json: spec, headers: { 'Idempotency-Key': o.idempotencyKey ?? randomUUID() } }
    try {
      return new Sandbox(this.#conn, await this.#conn.call('POST', '/v1/sandboxes', { ...ask, signal: o.signal }))
    } catch (e) {
      if (o.signal?.aborted && !o.idempotencyKey) await this.#uncreate(ask)
      throw e
    }
  }

  async #uncreate(ask: { json: m.CreateRequest; headers: Record<string, string> }): Promise<void> {
    try {
      const made = await this.#conn.call<m.Sandbox>('POST', '/v1/sandboxes', {
        ...ask,
        headers: { ...ask.headers, 'Atoll-Abandon': 'true' },
      })
      await this.remove(made.id)
    } catch (e) {
      if (!(e instanceof NotFoundError || e instanceof GoneError)) throw e
    }
  }

  /** The sandbox of that name or id, whatever its state. */
  async get(ref: string): Promise<Sandbox> {
    return new Sandbox(this.#conn, await this.#conn.call('GET', `/v1/sandboxes/${segment(ref)}`))
  }

  /** The sandboxes that have all of the labels, newest first. */
  async *list(o: { labels?: Record<string, string>; states?: readonly string[] } = {}): AsyncGenerator<m.Sandbox> {
    let cursor: string | undefined
    do {
      const query = { label: labelsQuery(o.labels), state: o.states, cursor }
      const page: m.ListOutputBody = await this.#conn.call('GET', '/v1/sandboxes', { query })
      yield* page.sandboxes ?? []
      cursor = page.next
    } while (cursor)
  }

  /** Destroy the sandbox of that name or id. One that is already gone is success; one that never existed is NotFoundError. */
  async remove(ref: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/sandboxes/${segment(ref)}`)
  }

  async providers(): Promise<m.Provider[]> {
    return (await this.#conn.call<m.ProvidersOutputBody>('GET', '/v1/providers')).providers ?? []
  }

  /** The ports of the daemon's machine that are forwarded to sandboxes. */
  async publishedPorts(): Promise<m.Publication[]> {
    return (await this.#conn.call<m.PublishedOutputBody>('GET', '/v1/published-ports')).ports ?? []
  }

  async templates(): Promise<m.Template[]> {
    return (await this.#conn.call<m.TemplatesOutputBody>('GET', '/v1/templates')).templates ?? []
  }

  /** Events, oldest first; with follow, also new ones as they happen. To continue later, pass the seq of the last event as after. */
  async *events(o: EventQuery = {}): AsyncGenerator<m.Event> {
    const query = {
      after: o.after,
      sandbox: o.sandbox,
      type: o.types,
      op: o.ops,
      since: o.since?.toISOString(),
      until: o.until?.toISOString(),
    }
    if (o.follow) {
      yield* this.#conn.events<m.Event>('/v1/events/stream', { query, signal: o.signal })
      if (!o.until) throw unreachable()
      return
    }
    for (;;) {
      const { events } = await this.#conn.call<m.EventsOutputBody>('GET', '/v1/events', { query, signal: o.signal })
      const last = events?.at(-1)
      if (!events || !last) return
      yield* events
      query.after = last.seq
    }
  }
}

/** The snapshots of a daemon. Sandbox.snapshot makes one. */
export class Snapshots {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  get(ref: string): Promise<m.Snapshot> {
    return this.#conn.call('GET', `/v1/snapshots/${segment(ref)}`)
  }

  async *list(labels?: Record<string, string>): AsyncGenerator<m.Snapshot> {
    let cursor: string | undefined
    do {
      const page: m.SnapshotListOutputBody = await this.#conn.call('GET', '/v1/snapshots', {
        query: { label: labelsQuery(labels), cursor },
      })
      yield* page.snapshots ?? []
      cursor = page.next
    } while (cursor)
  }

  async remove(ref: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/snapshots/${segment(ref)}`)
  }

  /** Remove the snapshots with all of the labels from which no existing sandbox was made. */
  async prune(labels: Record<string, string> = {}): Promise<m.Snapshot[]> {
    return (await this.#conn.call<m.SnapshotListOutputBody>('POST', '/v1/snapshots/prune', { json: { labels } })).snapshots ?? []
  }
}

/** Recordings of terminals, as asciicast files, and of desktops, as MP4 files. Sandbox.record starts one. */
export class Recordings {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  get(id: string): Promise<m.Recording> {
    return this.#conn.call('GET', `/v1/recordings/${segment(id)}`)
  }

  /** The recordings of a sandbox, of a session or of all, newest first. */
  async *list(o: { sandbox?: string; session?: string } = {}): AsyncGenerator<m.Recording> {
    let cursor: string | undefined
    do {
      const page: m.RecordingListOutputBody = await this.#conn.call('GET', '/v1/recordings', { query: { ...o, cursor } })
      yield* page.recordings ?? []
      cursor = page.next
    } while (cursor)
  }

  /** End a recording, and wait until it is stored. One that has ended is success. */
  stop(id: string): Promise<m.Recording> {
    return this.#conn.call('POST', `/v1/recordings/${segment(id)}/stop`)
  }

  /** The file of a recording. Of one that runs, what was recorded until now. */
  async read(id: string): Promise<Buffer> {
    const pieces: Uint8Array[] = []
    for await (const piece of this.stream(id)) pieces.push(piece)
    return Buffer.concat(pieces)
  }

  /** The file of a recording in chunks. */
  stream(id: string): AsyncGenerator<Uint8Array> {
    return this.#conn.bytes(`/v1/recordings/${segment(id)}/content`)
  }

  /** Remove a recording. One that runs ends. */
  async remove(id: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/recordings/${segment(id)}`)
  }
}

/** Durable directories. */
export class Workspaces {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  create(workspace: m.NewWorkspace): Promise<m.Workspace> {
    return this.#conn.call('POST', '/v1/workspaces', { json: workspace })
  }

  get(name: string): Promise<m.Workspace> {
    return this.#conn.call('GET', `/v1/workspaces/${segment(name)}`)
  }

  async list(): Promise<m.Workspace[]> {
    return (await this.#conn.call<m.WorkspacesOutputBody>('GET', '/v1/workspaces')).workspaces ?? []
  }

  async remove(name: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/workspaces/${segment(name)}`)
  }

  async versions(name: string): Promise<m.WorkspaceVersion[]> {
    return (await this.#conn.call<m.VersionsOutputBody>('GET', `/v1/workspaces/${segment(name)}/versions`)).versions ?? []
  }

  persist(name: string, note = ''): Promise<m.WorkspaceVersion> {
    return this.#conn.call('POST', `/v1/workspaces/${segment(name)}/persist`, { json: { note } })
  }

  restore(name: string, version: number, note = ''): Promise<m.WorkspaceVersion> {
    return this.#conn.call('POST', `/v1/workspaces/${segment(name)}/restore`, { json: { version, note } })
  }

  diff(name: string, from: number, to: number): Promise<m.DiffOutputBody> {
    return this.#conn.call('GET', `/v1/workspaces/${segment(name)}/diff`, { query: { from, to } })
  }
}

/** Egress profiles. */
export class Profiles {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  create(profile: m.Profile): Promise<m.StoredProfile> {
    return this.#conn.call('POST', '/v1/profiles', { json: profile })
  }

  /** Make or replace a profile. With a version, the stored profile must have that version. */
  apply(profile: m.Profile, o: { ifVersion?: number } = {}): Promise<m.StoredProfile> {
    return this.#conn.call('PUT', `/v1/profiles/${segment(profile.name ?? '')}`, { json: profile, query: { ifVersion: o.ifVersion } })
  }

  get(name: string, version?: number): Promise<m.StoredProfile> {
    return this.#conn.call('GET', `/v1/profiles/${segment(name)}`, { query: { version } })
  }

  async list(): Promise<m.StoredProfile[]> {
    return (await this.#conn.call<m.ProfilesOutputBody>('GET', '/v1/profiles')).profiles ?? []
  }

  async remove(name: string): Promise<void> {
    await this.#conn.call('DELETE', `/v1/profiles/${segment(name)}`)
  }

  /** Check a request against the profile, without sending it. */
  test(name: string, url: string, method?: string): Promise<m.Explanation> {
    return this.#conn.call('POST', `/v1/profiles/${segment(name)}/test`, { json: { url, method } })
  }
}

/** Stored secrets. Their values cannot be read. */
export class Secrets {
  readonly #conn: Conn

  /** @internal */
  constructor(conn: Conn) {
    this.#conn = conn
  }

  create(secret: m.NewSecret): Promise<m.StoredSecret> {
    return this.#conn.call('POST', '/v1/secrets', { json: secret })
  }

  rotate(name: string, value: string | Uint8Array): Promise<m.StoredSecret> {
    return this.#conn.call('PUT', `/v1/secrets/${segment(name)}/value`, { json: { valueBase64: Buffer.from(value).toString('base64') } })
  }

  async list(): Promise<m.StoredSecret[]> {
    return (await this.#conn.call<m.SecretsOutputBody>('GET', '/v1/secrets')).secrets ?? []
  }

  async remove(name: string, o: { force?: boolean } = {}): Promise<void> {
    await this.#conn.call('DELETE', `/v1/secrets/${segment(name)}`, { query: { force: o.force } })
  }
}
