/** The JavaScript client of Atoll: sandboxes for AI agents. */
export { Client, type ConnectOptions, connect, type EventQuery, Profiles, Recordings, Secrets, Snapshots, Workspaces } from './client.js'
export { type CodeOptions, type Execution } from './code.js'
export { anthropicResult, fromAnthropic, fromOpenAI, look, type ModelAction, openaiOutput } from './computer.js'
export type { Content } from './conn.js'
export {
  AlreadyExistsError,
  AtollError,
  CanceledError,
  ConflictError,
  DeniedError,
  type ErrorFields,
  ExhaustedError,
  errorClasses,
  GoneError,
  InternalError,
  InvalidError,
  NotFoundError,
  StaleError,
  TimedOutError,
  UnauthorizedError,
  UnavailableError,
  UnsupportedError,
} from './errors.js'
export { type FileEvent, Files, type SearchOptions, type WriteOptions } from './files.js'
export { type DiffOptions, Git, type GitEvent, type LogOptions } from './git.js'
export type * as models from './models.js'
export { type CommandOptions, type ExecOptions, type Output, Process, type Result, type RunOptions } from './process.js'
export { Sandbox } from './sandbox.js'
export { Session, type SessionOptions, Sessions } from './session.js'
export { Terminal, type TerminalOptions } from './terminal.js'
