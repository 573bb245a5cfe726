/** The client that a run is given. */
import { randomUUID } from 'node:crypto'

import { type Client, type ConnectOptions, connect, GoneError, type models, NotFoundError, type Session } from '@atoll/sdk'
import {
  type Manifest,
  normalizeSandboxClientCreateArgs,
  type SandboxClient,
  type SandboxClientCreateArgs,
  SandboxUnsupportedFeatureError,
} from '@openai/agents-core/sandbox'
import {
  assertHostPathGrantsRebound,
  assertMountCredentialsRebound,
  assertSandboxSessionStateUsable,
  deserializeHostPathGrantRedactionMetadata,
  deserializeManifest,
  deserializeMountCredentialRedactionMetadata,
  isRecord,
  isSandboxSessionStateUnsafe,
  materializeEnvironment,
  readString,
  rehydratePersistedEnvironmentForRuntime,
  serializeHostPathGrantRedactionMetadata,
  serializeManifestRecord,
  serializeMountCredentialRedactionMetadata,
  serializeRuntimeEnvironmentForPersistence,
} from '@openai/agents-core/sandbox/internal'

import { toSdk } from './errors.js'
import { type AtollSandboxClientOptions, type AtollSandboxSessionState, toSpec } from './options.js'
import { AtollSandboxSession } from './session.js'

/** Makes sandboxes with the daemon that connect of @atoll/sdk finds or starts. */
export class AtollSandboxClient implements SandboxClient<AtollSandboxClientOptions, AtollSandboxSessionState> {
  readonly backendId = 'atoll'
  readonly #where: ConnectOptions
  readonly #options: AtollSandboxClientOptions
  #client: Promise<Client> | undefined

  constructor(where: ConnectOptions = {}, options: AtollSandboxClientOptions = {}) {
    this.#where = where
    this.#options = options
  }

  /** Atoll's own client. */
  async connect(): Promise<Client> {
    this.#client ??= connect(this.#where)
    try {
      return await this.#client
    } catch (e) {
      this.#client = undefined
      throw e
    }
  }

  /** Close the connections. It ends no sandbox. */
  async close(): Promise<void> {
    const client = this.#client
    this.#client = undefined
    await (await client)?.close()
  }

  async create(
    args?: SandboxClientCreateArgs<AtollSandboxClientOptions> | Manifest,
    manifestOptions?: AtollSandboxClientOptions,
  ): Promise<AtollSandboxSession> {
    const { manifest, options: given, snapshot } = normalizeSandboxClientCreateArgs(args, manifestOptions)
    if (snapshot && snapshot.type !== 'noop') {
      throw new SandboxUnsupportedFeatureError('Atoll keeps sandboxes itself: use pauseOnExit, or fromSnapshot', { provider: 'atoll' })
    }
    const options = { ...this.#options, ...given }
    const session = await this.#make(options)
    const state = { manifest, environment: {}, options, atollSession: session.session.id, workspaceReady: true }
    const out = new AtollSandboxSession(state, session)
    try {
      out.state.environment = await materializeEnvironment(manifest)
      await out.materialize(manifest)
    } catch (e) {
      await session.destroy()
      throw e
    }
    return out
  }

  async #make(options: AtollSandboxClientOptions): Promise<Session> {
    const name = `openai-${randomUUID().replaceAll('-', '').slice(0, 20)}`
    let client: Client | undefined
    try {
      client = await this.connect()
      return await client.sessions.create(toSpec(options), { name, labels: options.labels, pauseOnExit: options.pauseOnExit })
    } catch (e) {
      await client?.sessions.remove(name).catch(() => {}) // what the daemon may have made
      throw toSdk(e, 'start')
    }
  }

  /** The sandbox of a state: woken, started, or rebuilt. Only one that is proved to be gone is replaced by an empty one. */
  async resume(state: AtollSandboxSessionState): Promise<AtollSandboxSession> {
    assertMountCredentialsRebound(state)
    assertHostPathGrantsRebound(state)
    const found = await this.#find(state)
    const session = found ?? (await this.#make(state.options))
    state.atollSession = session.session.id
    const out = new AtollSandboxSession(state, session)
    if (!found || session.receipt?.outcome === 'created' || session.receipt?.lost?.includes('everything'))
      await out.materialize(state.manifest)
    return out
  }

  async #find(state: AtollSandboxSessionState): Promise<Session | undefined> {
    const gone = (e: unknown) => {
      if (e instanceof NotFoundError || e instanceof GoneError) return undefined
      throw toSdk(e, 'start')
    }
    const client = await this.connect().catch((e: unknown) => Promise.reject(toSdk(e, 'start') as Error))
    const session = await client.sessions.attach(state.atollSession).catch(gone)
    return session ?? (state.envelope && (await client.sessions.resume(state.envelope).catch(gone)))
  }

  /** End the sandbox of a state for good, also a paused one. One that is gone is success. */
  async delete(state: AtollSandboxSessionState): Promise<void> {
    const client = await this.connect()
    await client.sessions.remove(state.atollSession).catch((e: unknown) => {
      if (!(e instanceof NotFoundError || e instanceof GoneError)) throw toSdk(e, 'start')
    })
  }

  canPersistOwnedSessionState(state: AtollSandboxSessionState): boolean {
    return !isSandboxSessionStateUnsafe(state) && state.options.pauseOnExit === true
  }

  async serializeSessionState(state: AtollSandboxSessionState): Promise<Record<string, unknown>> {
    assertSandboxSessionStateUsable(state)
    let envelope: models.Envelope | undefined
    try {
      const client = await this.connect()
      envelope = await (await client.sessions.get(state.atollSession)).envelope()
    } catch (e) {
      throw toSdk(e, 'start')
    }
    state.envelope = envelope
    return {
      ...serializeHostPathGrantRedactionMetadata(state),
      ...serializeMountCredentialRedactionMetadata(state),
      manifest: serializeManifestRecord(state.manifest),
      environment: serializeRuntimeEnvironmentForPersistence(state.manifest, state.environment),
      options: state.options,
      atollSession: state.atollSession,
      workspaceReady: true,
      envelope,
    }
  }

  async deserializeSessionState(state: Record<string, unknown>): Promise<AtollSandboxSessionState> {
    const manifest = deserializeManifest(isRecord(state.manifest) ? state.manifest : undefined)
    return {
      ...deserializeHostPathGrantRedactionMetadata(state),
      ...deserializeMountCredentialRedactionMetadata(state),
      manifest,
      environment: await rehydratePersistedEnvironmentForRuntime(manifest, state.environment as Record<string, string> | undefined),
      options: isRecord(state.options) ? state.options : {},
      atollSession: readString(state, 'atollSession'),
      workspaceReady: true,
      ...(isRecord(state.envelope) && { envelope: state.envelope as unknown as models.Envelope }),
    }
  }
}
