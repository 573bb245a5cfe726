/** Errors. Each code of the API is a class; see docs/reference/errors.md. */

export interface ErrorFields {
  op?: string
  subject?: string
  hint?: string
  rule?: string
  /** Seconds after which to retry, if known. */
  retryAfter?: number
  cause?: unknown
}

/** An error of the API. A code that this version does not know is a plain AtollError. */
export class AtollError extends Error {
  readonly code: string
  /** The text of the error, without the subject and the hint that are part of `message`. */
  readonly detail: string
  readonly op: string
  readonly subject: string
  readonly hint: string
  readonly rule: string
  readonly retryAfter: number | undefined

  constructor(code: string, detail: string, fields: ErrorFields = {}) {
    const text = fields.subject ? `${fields.subject}: ${detail}` : detail
    super(fields.hint ? `${text} (${fields.hint})` : text, fields.cause === undefined ? undefined : { cause: fields.cause })
    this.name = new.target.name
    this.code = code
    this.detail = detail
    this.op = fields.op ?? ''
    this.subject = fields.subject ?? ''
    this.hint = fields.hint ?? ''
    this.rule = fields.rule ?? ''
    this.retryAfter = fields.retryAfter
  }
}

type Make = new (detail: string, fields?: ErrorFields) => AtollError

function coded(code: string): Make {
  return class extends AtollError {
    constructor(detail: string, fields?: ErrorFields) {
      super(code, detail, fields)
    }
  }
}

/** The request can never succeed as written. */
export class InvalidError extends coded('invalid') {}
/** The API key is missing or not valid. */
export class UnauthorizedError extends coded('unauthorized') {}
/** The caller is known but not allowed to do this. */
export class DeniedError extends coded('denied') {}
/** There is no such sandbox, command or file. */
export class NotFoundError extends coded('not_found') {}
/** The name or path is taken. */
export class AlreadyExistsError extends coded('already_exists') {}
/** It is not possible in the present state; the hint names the next step. */
export class ConflictError extends coded('conflict') {}
/** Another sandbox serves the session now; the call had no effect. */
export class StaleError extends coded('stale') {}
/** The sandbox is proved not to exist any more. */
export class GoneError extends coded('gone') {}
/** A quota, a limit or a disk is full. */
export class ExhaustedError extends coded('exhausted') {}
/** The call was canceled. */
export class CanceledError extends coded('canceled') {}
/** A bug in Atoll. */
export class InternalError extends coded('internal') {}
/** This provider cannot do that. */
export class UnsupportedError extends coded('unsupported') {}
/** It could not be reached. This says nothing about whether it exists. */
export class UnavailableError extends coded('unavailable') {}
/** It took too long. */
export class TimedOutError extends coded('timeout') {}

/** The class of each code. */
export const errorClasses: Readonly<Record<string, Make>> = {
  invalid: InvalidError,
  unauthorized: UnauthorizedError,
  denied: DeniedError,
  not_found: NotFoundError,
  already_exists: AlreadyExistsError,
  conflict: ConflictError,
  stale: StaleError,
  gone: GoneError,
  exhausted: ExhaustedError,
  canceled: CanceledError,
  internal: InternalError,
  unsupported: UnsupportedError,
  unavailable: UnavailableError,
  timeout: TimedOutError,
}

/** @internal The error in a response of the API, if there is one. */
export function fromProblem(problem: unknown, retryAfter?: string): AtollError | undefined {
  if (typeof problem !== 'object' || problem === null || !('code' in problem) || typeof problem.code !== 'string') return undefined
  const p = problem as Record<string, unknown>
  const text = (key: string) => (typeof p[key] === 'string' ? p[key] : '')
  const code = text('code')
  const fault = Array.isArray(p.faults) ? (p.faults[0] as { field?: string; message?: string } | undefined) : undefined
  const request = text('request')
  const fields: ErrorFields = {
    op: text('op'),
    subject: fault?.field ?? text('subject'),
    hint: text('hint') || (request && `see the daemon's log for request ${request}`),
    rule: text('rule'),
  }
  if (retryAfter && /^\d+$/.test(retryAfter)) fields.retryAfter = Number(retryAfter)
  const detail = fault?.message ?? (text('detail') || text('message') || text('title'))
  const Known = errorClasses[code]
  return Known ? new Known(detail, fields) : new AtollError(code, detail, fields)
}

/** @internal The error of a response with an error status. */
export function fromAnswer(status: number, body: string, retryAfter?: string): AtollError {
  let problem: unknown
  try {
    problem = JSON.parse(body)
  } catch {
    // not a response of Atoll
  }
  return (
    fromProblem(problem, retryAfter) ??
    new UnavailableError(`something that is not Atoll answered with status ${status}`, { op: 'client.request' })
  )
}

/** @internal The daemon could not be reached. */
export function unreachable(cause?: unknown): UnavailableError {
  const detail = cause instanceof Error && cause.message ? `: ${cause.message}` : ''
  return new UnavailableError(`the daemon does not answer${detail}`, { op: 'client.request', hint: 'start one with: atoll up', cause })
}
