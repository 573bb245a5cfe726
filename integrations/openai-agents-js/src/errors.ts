/** Converts errors of Atoll to errors of the SDK. */
import { AtollError, DeniedError, InvalidError, NotFoundError, UnauthorizedError, UnsupportedError } from '@atoll/sdk'
import {
  SandboxConfigurationError,
  type SandboxError,
  SandboxExecTransportError,
  SandboxWorkspaceArchiveReadError,
  SandboxWorkspaceArchiveWriteError,
  SandboxWorkspaceReadNotFoundError,
  SandboxWorkspaceStartError,
} from '@openai/agents-core/sandbox'

const configuration = [InvalidError, NotFoundError, UnsupportedError, DeniedError, UnauthorizedError]

export type During = 'start' | 'exec' | 'read' | 'write'

/** @internal The SDK's error for an error of Atoll. Other errors are returned unchanged. */
export function toSdk(e: unknown, during: During, more: Record<string, unknown> = {}): unknown {
  if (!(e instanceof AtollError)) return e
  return Object.assign(make(e, during, { provider: 'atoll', code: e.code, op: e.op, subject: e.subject, hint: e.hint, ...more }), {
    cause: e,
  })
}

function make(e: AtollError, during: During, details: Record<string, unknown>): SandboxError {
  const message = `Atoll: ${e.message}`
  switch (during) {
    case 'start':
      if (configuration.some((kind) => e instanceof kind)) return new SandboxConfigurationError(message, details, 'sandbox_config_invalid')
      return new SandboxWorkspaceStartError(message, details)
    case 'exec':
      return new SandboxExecTransportError(message, details)
    case 'read':
      if (e instanceof NotFoundError) return new SandboxWorkspaceReadNotFoundError(message, details)
      return new SandboxWorkspaceArchiveReadError(message, details)
    case 'write':
      return new SandboxWorkspaceArchiveWriteError(message, details)
  }
}

/** @internal */
export async function told<T>(during: During, details: Record<string, unknown>, body: () => Promise<T>): Promise<T> {
  try {
    return await body()
  } catch (e) {
    throw toSdk(e, during, details)
  }
}
