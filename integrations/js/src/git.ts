/** Git repositories in a sandbox. */
import type { Conn } from './conn.js'
import type * as m from './models.js'

/** The state of a watched git repository. Outside of one, isRepo is false. */
export interface GitEvent {
  isRepo: boolean
  /** The current branch; not set if HEAD is detached. */
  head?: string
  /** Not set before the first one. */
  commit?: string
  detached?: boolean
  upstream?: string
  ahead: number
  behind: number
  dirty: boolean
  changedFileCount: number
  reason: 'start' | 'watch' | 'poll'
  /** Grows by one with each state. */
  revision: number
  /** Which sandbox of the session, if a session is watched. */
  leaseEpoch?: number
}

export interface DiffOptions {
  /** Compare the index with the last commit. */
  staged?: boolean
  /** Compare this commit with `to`, or with the working tree. */
  from?: string
  to?: string
  /** Only these files and directories, relative to the directory. */
  paths?: readonly string[]
  /** Lines around changes; 3 if left out, -1 for none. */
  context?: number
  /** A file whose changes have more bytes has no hunks; 512 KiB if left out. */
  maxBytes?: number
}

export interface LogOptions {
  /** Where to begin; HEAD if left out. */
  rev?: string
  /** Commits; 100 if left out. */
  max?: number
  skip?: number
  paths?: readonly string[]
}

/** Reads the git repository that a directory of a sandbox is in, with the sandbox's own git. It changes nothing. */
export class Git {
  readonly #conn: Conn
  readonly #base: string
  readonly #path: string | undefined

  /** @internal */
  constructor(conn: Conn, base: string, path?: string) {
    this.#conn = conn
    this.#base = `${base}/git`
    this.#path = path
  }

  /** The branch and the files that differ from the last commit. Outside of a repository, isRepo is false. */
  status(): Promise<m.GitStatus> {
    return this.#conn.call('GET', `${this.#base}/status`, { query: { path: this.#path } })
  }

  /** The state of the repository, and then each state that differs from the one before. */
  watch(o: { signal?: AbortSignal } = {}): AsyncGenerator<GitEvent> {
    return this.#conn.events(`${this.#base}/watch`, { query: { path: this.#path }, signal: o.signal })
  }

  /** What changed; by default in the working tree with its untracked files, compared with the index. */
  diff(o: DiffOptions = {}): Promise<m.GitDiff> {
    return this.#conn.call('GET', `${this.#base}/diff`, { query: { path: this.#path, ...o } })
  }

  /** Commits, the latest first. */
  log(o: LogOptions = {}): Promise<m.GitLog> {
    return this.#conn.call('GET', `${this.#base}/log`, { query: { path: this.#path, ...o } })
  }

  /** A commit (HEAD if left out) and its difference from its first parent. */
  show(rev?: string): Promise<m.GitShow> {
    return this.#conn.call('GET', `${this.#base}/show`, { query: { path: this.#path, rev } })
  }

  /** A file as it was in a commit (HEAD if left out), and at most maxBytes (512 KiB) of it. */
  async read(file: string, o: { rev?: string; maxBytes?: number } = {}): Promise<Buffer> {
    const { blob } = await this.#conn.call<m.GitShow>('GET', `${this.#base}/show`, { query: { path: this.#path, file, ...o } })
    return Buffer.from(blob?.content ?? '', 'base64')
  }

  /** Which commits the lines of a file are from. */
  blame(file: string, o: { rev?: string; first?: number; last?: number } = {}): Promise<m.GitBlame> {
    return this.#conn.call('GET', `${this.#base}/blame`, { query: { path: this.#path, file, ...o } })
  }
}
