/** Workspaces that are saved as snapshots of the daemon. */
import { type Client, ConflictError, NotFoundError, type Session, UnsupportedError } from '@atoll/sdk'

import { told } from './errors.js'
import { type AtollSandboxSessionState, newName } from './options.js'

const magic = 'ATOLL_SANDBOX_SNAPSHOT_V1\n'

/** @internal The reference to a snapshot, which is stored in place of a tar. */
export function nativeSnapshot(id: string): Uint8Array {
  return new TextEncoder().encode(magic + JSON.stringify({ snapshot: id }))
}

/** @internal The snapshot that data refer to, if they do. */
export function nativeSnapshotOf(data: Uint8Array): string | undefined {
  const head = new TextDecoder().decode(data.subarray(0, 4096))
  if (!head.startsWith(magic)) return undefined
  return String((JSON.parse(head.slice(magic.length)) as { snapshot: unknown }).snapshot)
}

/**
 * @internal Take a snapshot in place of the last one, and return its id. Undefined means that the workspace must be kept as a tar:
 * the options do not ask for a snapshot, the provider has none, or a snapshot would have more or less than the workspace.
 */
export async function takeSnapshot(client: Client, session: Session, state: AtollSandboxSessionState): Promise<string | undefined> {
  const { options, manifest } = state
  if (options.workspacePersistence !== 'snapshot' || options.workspace || manifest.ephemeralPersistencePaths().size > 0) return undefined
  const name = newName()
  return told('read', { path: manifest.root }, async () => {
    let id: string
    try {
      id = (await session.snapshot({ name, memory: false, labels: options.labels })).id
    } catch (e) {
      if (e instanceof UnsupportedError) return undefined
      await client.snapshots.remove(name).catch(() => {}) // the daemon may have made it
      throw e
    }
    const old = state.nativeSnapshot
    state.nativeSnapshot = id
    if (old) await forget(client, old)
    return id
  })
}

/** @internal Remove a snapshot, unless a sandbox was made from it. */
export async function forget(client: Client, id: string): Promise<void> {
  await twice(() =>
    client.snapshots.remove(id).catch((e: unknown) => {
      if (!(e instanceof NotFoundError || e instanceof ConflictError)) throw e
    }),
  )
}

/** @internal Retry an idempotent operation once, such as a removal. */
export function twice(body: () => Promise<void>): Promise<void> {
  return body().catch(body)
}
