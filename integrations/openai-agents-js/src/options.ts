import { randomUUID } from 'node:crypto'

import type { models } from '@atoll/sdk'
import type { SandboxSessionState } from '@openai/agents-core/sandbox'

/** Options of a sandbox. It can reach no hosts unless profile or egress allows them. */
export interface AtollSandboxClientOptions extends Record<string, unknown> {
  image?: string
  template?: string
  /** Name or id of a snapshot of Atoll to start from. */
  fromSnapshot?: string
  provider?: string
  /** Bytes. */
  memory?: number
  cpus?: number
  /** Bytes. */
  disk?: number
  pids?: number
  /** Name of an egress profile. */
  profile?: string
  /** Hosts that the sandbox can reach. */
  egress?: string[]
  /** Names of stored secrets. */
  secrets?: string[]
  /** Name of a durable directory at /workspace, made if it is missing. */
  workspace?: string
  labels?: Record<string, string>
  exposedPorts?: number[]
  /** Pause the sandbox at the end of a run and resume it at the next, instead of ending it. */
  pauseOnExit?: boolean
  /** How the workspace of a sandbox that ends is saved: as a snapshot if the provider has them, or as a tar in the store of the client. */
  workspacePersistence?: 'tar' | 'snapshot'
  /** The maximum lifetime of the sandbox. */
  lifetimeMs?: number
  /** The timeout of a command in the foreground; ten minutes if left out. */
  execTimeoutMs?: number
}

/** What another process needs to continue, in addition to the address of the daemon and a key. */
export interface AtollSandboxSessionState extends SandboxSessionState {
  environment: Record<string, string>
  options: AtollSandboxClientOptions
  /** The id of the session. */
  atollSession: string
  /** The envelope, from which the daemon finds the sandbox again or rebuilds it. */
  envelope?: models.Envelope
  /** Id of the last snapshot of the sandbox. */
  nativeSnapshot?: string
}

/** @internal The name of a new session. If the response is lost, the session is removed by this name. */
export function newName(): string {
  return `openai-${randomUUID().replaceAll('-', '').slice(0, 20)}`
}

/** @internal */
export function toSpec(o: AtollSandboxClientOptions): models.Spec {
  const spec: models.Spec = {
    image: o.template ? `template:${o.template}` : o.image,
    snapshot: o.fromSnapshot,
    provider: o.provider,
    resources: { memory: o.memory, cpus: o.cpus, disk: o.disk, pids: o.pids },
    secrets: o.secrets?.map((name) => ({ name })),
    labels: o.labels,
  }
  if (o.profile || o.egress) spec.network = { profile: o.profile, egress: o.egress }
  if (o.workspace) spec.workspaces = [{ name: o.workspace, create: true }]
  if (o.lifetimeMs) spec.lifetime = { timeoutMs: o.lifetimeMs }
  return spec
}
