/** The sandbox client for a run. */
import { type Client, type ConnectOptions, connect, GoneError, type models, NotFoundError, type Session } from '@atoll/sdk'
import {
  type Manifest,
  normalizeSandboxClientCreateArgs,
  type RemoteSnapshotStore,
  type SandboxClient,
  type SandboxClientCreateArgs,
  type SandboxSessionSerializationOptions,
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

import { told, toSdk } from './errors.js'
import { type AtollSandboxClientOptions, type AtollSandboxSessionState, newName, toSpec } from './options.js'
import { AtollSandboxSession } from './session.js'
import { forget, nativeSnapshot, takeSnapshot, twice } from './snapshots.js'

/** Makes sandboxes with the daemon that connect of @atoll/sdk finds or starts. */
export class AtollSandboxClient implements SandboxClient<AtollSandboxClientOptions, AtollSandboxSessionState> {
  readonly backendId = 'atoll'
  readonly #where: ConnectOptions
  readonly #options: AtollSandboxClientOptions
  readonly #store: RemoteSnapshotStore | undefined
  #client: Promise<Client> | undefined

  /** The store is for workspaces of which the daemon keeps no snapshot; see workspacePersistence. */
  constructor(where: ConnectOptions = {}, options: AtollSandboxClientOptions = {}, store?: RemoteSnapshotStore) {
    this.#where = where
    this.#options = options
    this.#store = store
  }

  /** The underlying client of @atoll/sdk. */
  async connect(): Promise<Client> {
    this.#client ??= connect(this.#where)
    try {
      return await this.#client
    } catch (e) {
      this.#client = undefined
      throw e
    }
  }

  /** Close the connections. Sandboxes keep running. */
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
    const [client, session] = await this.#make(options)
    const state = { manifest, environment: {}, options, atollSession: session.session.id, workspaceReady: true }
    const out = new AtollSandboxSession(state, session, client)
    try {
      out.state.environment = await materializeEnvironment(manifest)
      await out.materialize(manifest)
    } catch (e) {
      await twice(() => session.destroy()).catch(() => {})
      throw toSdk(e, 'start')
    }
    return out
  }

  async #make(options: AtollSandboxClientOptions, snapshot?: string): Promise<[Client, Session]> {
    const name = newName()
    let client: Client | undefined
    try {
      client = await this.connect()
      const spec = { ...toSpec(options), ...(snapshot && { snapshot, image: undefined }) }
      return [client, await client.sessions.create(spec, { name, labels: options.labels, pauseOnExit: options.pauseOnExit })]
    } catch (e) {
      await client?.sessions.remove(name).catch(() => {}) // the daemon may have made it
      throw toSdk(e, 'start')
    }
  }

  /**
   * The sandbox of a state, which is resumed, started or rebuilt. If it is proved to be gone, it is replaced by one with the files of the
   * snapshot that the state names, or else by an empty one with the files of the manifest.
   */
  async resume(state: AtollSandboxSessionState): Promise<AtollSandboxSession> {
    assertMountCredentialsRebound(state)
    assertHostPathGrantsRebound(state)
    const found = await this.#find(state)
    const [client, session] = found ?? (await this.#make(state.options, state.nativeSnapshot))
    state.atollSession = session.session.id
    const out = new AtollSandboxSession(state, session, client)
    const lost = session.receipt?.outcome === 'created' || session.receipt?.lost?.includes('everything')
    try {
      if (!found && state.nativeSnapshot) await out.materialize(state.manifest, undefined, true)
      else if (!found || lost) await this.#restore(out)
    } catch (e) {
      if (!found) await twice(() => session.destroy()).catch(() => {})
      throw toSdk(e, 'start')
    }
    return out
  }

  /** Fill an empty sandbox with the saved workspace, or with the files of the manifest. */
  async #restore(session: AtollSandboxSession): Promise<void> {
    const { manifest, nativeSnapshot: native, snapshot } = session.state
    let kept = native ? nativeSnapshot(native) : undefined
    if (!kept && snapshot?.type === 'remote') kept = (await this.#store?.load({ id: snapshot.id }))?.data
    await session.materialize(manifest, undefined, kept !== undefined)
    if (kept) await session.hydrateWorkspace(kept)
  }

  async #find(state: AtollSandboxSessionState): Promise<[Client, Session] | undefined> {
    const gone = (e: unknown) => {
      if (e instanceof NotFoundError || e instanceof GoneError) return undefined
      throw toSdk(e, 'start')
    }
    const client = await this.connect().catch((e: unknown) => Promise.reject(toSdk(e, 'start') as Error))
    let session = await client.sessions.attach(state.atollSession).catch(gone)
    const kept = state.nativeSnapshot ?? state.snapshot
    if (!kept && state.envelope) session ??= await client.sessions.resume(state.envelope).catch(gone)
    return session && [client, session]
  }

  /** End the sandbox of a state, even if it is paused, and remove its snapshot. One that is already gone is success. */
  async delete(state: AtollSandboxSessionState): Promise<void> {
    const gone = (e: unknown) => {
      if (!(e instanceof NotFoundError || e instanceof GoneError)) throw e
    }
    await told('start', {}, async () => {
      const client = await this.connect()
      await twice(() => client.sessions.remove(state.atollSession).catch(gone))
      if (state.nativeSnapshot) await forget(client, state.nativeSnapshot)
      if (state.snapshot?.type === 'remote') await this.#store?.delete?.({ id: state.snapshot.id })
    })
  }

  canPersistOwnedSessionState(state: AtollSandboxSessionState): boolean {
    const { pauseOnExit, workspacePersistence } = state.options
    return !isSandboxSessionStateUnsafe(state) && (pauseOnExit === true || workspacePersistence === 'snapshot' || this.#store !== undefined)
  }

  /** While a run waits for an approval, its sandbox keeps running, unless its workspace is saved. */
  canReusePreservedOwnedSession(state: AtollSandboxSessionState): boolean {
    return !this.canPersistOwnedSessionState(state) || state.options.pauseOnExit === true
  }

  async serializeSessionState(
    state: AtollSandboxSessionState,
    how: SandboxSessionSerializationOptions = {},
  ): Promise<Record<string, unknown>> {
    assertSandboxSessionStateUsable(state)
    const envelope = await told('start', {}, async () => {
      const client = await this.connect()
      const session = await client.sessions.get(state.atollSession)
      if (how.willCloseAfterSerialize && !state.options.pauseOnExit) await this.#keep(client, session, state)
      return session.envelope()
    })
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
      ...(state.nativeSnapshot && { nativeSnapshot: state.nativeSnapshot }),
      ...(state.snapshot && { snapshot: state.snapshot }),
    }
  }

  /** Save the workspace of a sandbox that is about to end. */
  async #keep(client: Client, session: Session, state: AtollSandboxSessionState): Promise<void> {
    if (await takeSnapshot(client, session, state)) return
    if (!this.#store)
      throw new SandboxUnsupportedFeatureError('this sandbox needs a store of snapshots, or pauseOnExit', { provider: 'atoll' })
    const data = await new AtollSandboxSession(state, session, client).persistWorkspace()
    const { id } = await this.#store.save({ ...(state.snapshot && { id: state.snapshot.id }), data })
    state.snapshot = { type: 'remote', id }
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
      ...(typeof state.nativeSnapshot === 'string' && { nativeSnapshot: state.nativeSnapshot }),
      ...(isRecord(state.snapshot) && { snapshot: { type: readString(state.snapshot, 'type'), id: readString(state.snapshot, 'id') } }),
      ...(isRecord(state.envelope) && { envelope: state.envelope as unknown as models.Envelope }),
    }
  }
}
