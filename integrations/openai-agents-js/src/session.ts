/** A sandbox as a run of an agent uses it. */
import { createServer, type Server } from 'node:net'

import { type Client, GoneError, NotFoundError, type Session } from '@atoll/sdk'
import type { Editor, ToolOutputImage } from '@openai/agents-core'
import {
  cloneManifest,
  type ExecCommandArgs,
  type ExposedPortEndpoint,
  type ListDirectoryArgs,
  type Manifest,
  type MaterializeEntryArgs,
  type ReadFileArgs,
  recordExposedPortEndpoint,
  type SandboxDirectoryEntry,
  type SandboxExecResult,
  SandboxExecTimeoutError,
  SandboxExposedPortUnavailableError,
  type SandboxSession,
  SandboxUnsupportedFeatureError,
  type ViewImageArgs,
  type WorkspaceArchiveData,
  type WriteStdinArgs,
} from '@openai/agents-core/sandbox'
import {
  assertViewImageByteLength,
  elapsedSeconds,
  formatExecResponse,
  imageOutputFromBytes,
  MAX_VIEW_IMAGE_BYTES,
  mergeManifestDelta,
  mergeManifestEntryDelta,
  mergeMaterializedEnvironment,
  toUint8Array,
  truncateOutput,
  withExclusiveSandboxManifestMutation,
} from '@openai/agents-core/sandbox/internal'

import { told, toSdk } from './errors.js'
import { type AtollSandboxSessionState, newName, toSpec } from './options.js'
import { nativeSnapshot, nativeSnapshotOf, takeSnapshot, twice } from './snapshots.js'
import { Terminals } from './terminals.js'
import { WorkspaceFiles } from './workspace.js'

const execTimeoutMs = 10 * 60_000
const outputLimit = 16 << 20

/** A session of the SDK that is a session of Atoll. */
export class AtollSandboxSession implements SandboxSession<AtollSandboxSessionState> {
  readonly #files: WorkspaceFiles
  readonly #terminals = new Terminals()
  readonly #forwards = new Map<number, Server>()
  #closed: Promise<void> | undefined

  #session: Session

  /** @internal */
  constructor(
    readonly state: AtollSandboxSessionState,
    session: Session,
    readonly client: Client,
  ) {
    this.#session = session
    this.#files = new WorkspaceFiles(
      () => this.#session,
      () => this.state.manifest,
    )
  }

  /** The underlying handle of @atoll/sdk. */
  get session(): Session {
    return this.#session
  }

  async running(): Promise<boolean> {
    try {
      return !this.#closed && (await this.session.refresh()).state === 'running'
    } catch (e) {
      if (e instanceof NotFoundError || e instanceof GoneError) return false
      throw toSdk(e, 'start')
    }
  }

  supportsPty(): boolean {
    return true
  }

  async #command(args: ExecCommandArgs) {
    const cwd = await this.#files.resolve(args.workdir)
    const shell = args.shell ?? '/bin/sh'
    return { argv: [shell, args.login === false ? '-c' : '-lc', args.cmd], how: { cwd, env: this.state.environment, user: args.runAs } }
  }

  async exec(args: ExecCommandArgs): Promise<SandboxExecResult> {
    const start = Date.now()
    const { argv, how } = await this.#command(args)
    const timeoutMs = this.state.options.execTimeoutMs ?? execTimeoutMs
    const r = await told('exec', { command: args.cmd }, () => this.session.run(argv, { ...how, timeoutMs, outputLimit }))
    if (r.timedOut)
      throw new SandboxExecTimeoutError(`the command took longer than ${timeoutMs} ms`, { provider: 'atoll', command: args.cmd, timeoutMs })
    const [stdout, stderr] = [r.stdout.toString(), r.stderr.toString()]
    const output = truncateOutput([stdout.trimEnd(), stderr.trimEnd()].filter(Boolean).join('\n'), args.maxOutputTokens)
    return {
      output: output.text,
      stdout,
      stderr,
      wallTimeSeconds: elapsedSeconds(start),
      exitCode: r.code,
      originalTokenCount: output.originalTokenCount,
    }
  }

  async execCommand(args: ExecCommandArgs): Promise<string> {
    if (!args.tty) return formatExecResponse(await this.exec(args))
    const { argv, how } = await this.#command(args)
    return told('exec', { command: args.cmd }, async () =>
      this.#terminals.add(await this.session.exec(argv, { ...how, tty: { cols: 80, rows: 24 } }), args),
    )
  }

  writeStdin(args: WriteStdinArgs): Promise<string> {
    return this.#terminals.write(args)
  }

  createEditor(runAs?: string): Editor {
    return this.#files.editor(runAs)
  }

  readFile(args: ReadFileArgs): Promise<Uint8Array> {
    return this.#files.read(args.path, args)
  }

  async viewImage(args: ViewImageArgs): Promise<ToolOutputImage> {
    const bytes = await this.#files.read(args.path, { runAs: args.runAs, maxBytes: MAX_VIEW_IMAGE_BYTES + 1 })
    assertViewImageByteLength(args.path, bytes.length)
    return imageOutputFromBytes(args.path, bytes)
  }

  async listDir(args: ListDirectoryArgs): Promise<SandboxDirectoryEntry[]> {
    const real = await this.#files.resolve(args.path)
    return told('read', { path: args.path }, async () => {
      const out: SandboxDirectoryEntry[] = []
      for await (const f of this.session.files.list(real)) {
        out.push({
          name: f.path,
          path: `${args.path.replace(/\/$/, '')}/${f.path}`,
          type: f.type === 'file' || f.type === 'dir' ? f.type : 'other',
        })
      }
      return out
    })
  }

  pathExists(path: string, runAs?: string): Promise<boolean> {
    return this.#files.exists(path, '-e', runAs)
  }

  directoryExists(path: string, runAs?: string): Promise<boolean> {
    return this.#files.exists(path, '-d', runAs)
  }

  async materializeEntry(args: MaterializeEntryArgs): Promise<void> {
    await withExclusiveSandboxManifestMutation(this.state, async () => {
      const merged = mergeManifestEntryDelta(this.state.manifest, args.path, args.entry)
      await this.#files.materialize(args.path, args.entry, args.runAs)
      this.state.manifest = merged
    })
  }

  async applyManifest(manifest: Manifest, runAs?: string): Promise<void> {
    const update = cloneManifest(manifest)
    await withExclusiveSandboxManifestMutation(this.state, async () => {
      const merged = mergeManifestDelta(this.state.manifest, update)
      const environment = await mergeMaterializedEnvironment(this.state.manifest, merged, this.state.environment)
      await this.materialize(update, runAs)
      this.state.manifest = merged
      this.state.environment = environment
    })
  }

  /** @internal Create the files of the manifest, or only those that are not in a snapshot of the workspace. */
  async materialize(manifest: Manifest, runAs?: string, ephemeralOnly = false): Promise<void> {
    if (manifest.users.length > 0 || manifest.groups.length > 0) {
      throw new SandboxUnsupportedFeatureError('Atoll makes no users and groups of a manifest; use an image that has them', {
        provider: 'atoll',
      })
    }
    await told('start', { path: manifest.root }, () => this.session.files.mkdir(this.state.manifest.root))
    for (const [path, entry] of Object.entries(manifest.entries)) {
      if (!ephemeralOnly || entry.ephemeral) await this.#files.materialize(path, entry, runAs)
    }
  }

  /** The workspace as a tar, or a reference to a snapshot of Atoll if the options ask for it and the provider has snapshots. */
  async persistWorkspace(): Promise<Uint8Array> {
    const made = await takeSnapshot(this.client, this.#session, this.state)
    return made ? nativeSnapshot(made) : this.#files.persist()
  }

  async hydrateWorkspace(data: WorkspaceArchiveData): Promise<void> {
    const bytes = await toUint8Array(data)
    const snapshot = nativeSnapshotOf(bytes)
    if (snapshot === undefined) await this.#files.hydrate(bytes)
    else await this.#replace(snapshot)
  }

  /** Replace the sandbox by a new one with the files of a snapshot. */
  async #replace(snapshot: string): Promise<void> {
    const [old, { options }, name] = [this.#session, this.state, newName()]
    await told('write', { snapshot }, async () => {
      try {
        const spec = { ...toSpec(options), snapshot, image: undefined }
        this.#session = await this.client.sessions.create(spec, { name, labels: options.labels, pauseOnExit: options.pauseOnExit })
      } catch (e) {
        await this.client.sessions.remove(name).catch(() => {}) // the daemon may have made it
        throw e
      }
      this.state.atollSession = this.#session.session.id
      await twice(() => old.destroy())
    })
  }

  async resolveExposedPort(port: number): Promise<ExposedPortEndpoint> {
    if (!this.state.options.exposedPorts?.includes(port)) {
      throw new SandboxExposedPortUnavailableError(`port ${port} is not in exposedPorts`, {
        provider: 'atoll',
        port,
        reason: 'not_configured',
      })
    }
    const server = this.#forwards.get(port) ?? (await this.#forward(port))
    const at = server.address()
    if (at === null || typeof at === 'string') {
      throw new SandboxExposedPortUnavailableError(`port ${port} is not forwarded any more`, {
        provider: 'atoll',
        port,
        reason: 'backend_unavailable',
      })
    }
    return recordExposedPortEndpoint(this.state, { host: '127.0.0.1', port: at.port, tls: false }, port)
  }

  async #forward(port: number): Promise<Server> {
    const server = createServer({ allowHalfOpen: true }, (conn) => {
      conn.on('error', () => conn.destroy())
      this.session.dial(port).then(
        (inside) => {
          inside.on('error', () => conn.destroy())
          conn.on('close', () => inside.destroy())
          conn.pipe(inside).pipe(conn)
        },
        () => conn.destroy(),
      )
    })
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(0, '127.0.0.1', resolve)
    })
    server.unref()
    this.#forwards.set(port, server)
    return server
  }

  /** End the sandbox, or pause it if its options say so. One that is already gone is success. */
  close(): Promise<void> {
    this.#closed ??= this.#close().catch((e: unknown) => {
      this.#closed = undefined // allow another attempt
      throw e
    })
    return this.#closed
  }

  async #close(): Promise<void> {
    for (const server of this.#forwards.values()) server.close()
    await this.#terminals.close()
    try {
      await told('start', {}, () => (this.state.options.pauseOnExit ? this.session.release() : this.session.destroy()))
    } catch (e) {
      if (!(e instanceof Error && (e.cause instanceof NotFoundError || e.cause instanceof GoneError))) throw e
    }
  }

  shutdown(): Promise<void> {
    return this.close()
  }

  delete(): Promise<void> {
    return this.close()
  }
}
