/** The files of a sandbox. */
import type { Conn, Content } from './conn.js'
import { NotFoundError } from './errors.js'
import type * as m from './models.js'

/** A change of a file below a watched path, which path is relative to. */
export interface FileEvent {
  op: 'create' | 'write' | 'remove' | 'chmod' | 'overflow'
  path: string
  dir?: boolean
  /** Grows with each event. */
  revision?: number
  /** Which sandbox of the session, if a session is watched. */
  leaseEpoch?: number
}

export interface WriteOptions {
  mode?: number
  owner?: string
  /** Make missing directories; true if left out. */
  parents?: boolean
  /** Replace a file that exists; true if left out. */
  replace?: boolean
  /** The SHA-256 of the present content, in hexadecimal. A file with another content is ConflictError. */
  expect?: string
}

export interface SearchOptions {
  /** A regular expression (RE2) for lines. */
  content?: string
  /** Such as `*.ts` or `src/**\/*.ts`. */
  name?: string
  /** The content is text, not a regular expression. */
  literal?: boolean
  ignoreCase?: boolean
  /** Names of files and directories to leave out; .git and node_modules if left out. */
  exclude?: readonly string[]
  /** Matches; 200 if left out. */
  max?: number
}

/** The files of a sandbox. Paths are absolute. */
export class Files {
  readonly #conn: Conn
  readonly #base: string

  /** @internal */
  constructor(conn: Conn, base: string) {
    this.#conn = conn
    this.#base = `${base}/files`
  }

  /** Describe a file. It does not follow a symbolic link. */
  stat(path: string): Promise<m.FileInfo> {
    return this.#conn.call('GET', `${this.#base}/stat`, { query: { path } })
  }

  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path)
      return true
    } catch (e) {
      if (e instanceof NotFoundError) return false
      throw e
    }
  }

  /** The files in a directory, down to depth levels (1; -1: all). */
  list(path: string, depth?: number): AsyncGenerator<m.FileInfo> {
    return this.#conn.lines(`${this.#base}/list`, { query: { path, depth } })
  }

  /** The content of a file, or a part of it. */
  async read(path: string, part: { offset?: number; length?: number } = {}): Promise<Buffer> {
    const pieces: Uint8Array[] = []
    for await (const piece of this.stream(path, part)) pieces.push(piece)
    return Buffer.concat(pieces)
  }

  /** The content of a file in chunks. */
  async *stream(path: string, part: { offset?: number; length?: number } = {}): AsyncGenerator<Uint8Array> {
    const { offset = 0, length } = part
    if (length === 0) return
    const headers: Record<string, string> = {}
    if (offset || length !== undefined) headers.Range = `bytes=${offset}-${length === undefined ? '' : offset + length - 1}`
    yield* this.#conn.bytes(this.#base, { query: { path }, headers })
  }

  /** Make or replace a file atomically. With `replace: false` a file that exists is AlreadyExistsError. */
  write(path: string, content: Content, o: WriteOptions = {}): Promise<m.FileInfo> {
    const query = {
      path,
      mode: o.mode?.toString(8),
      owner: o.owner,
      noParents: o.parents === false,
      noReplace: o.replace === false,
      expect: o.expect,
    }
    return this.#conn.call('PUT', this.#base, { query, content })
  }

  /** Make a directory. With parents (true if left out), one that exists is success. */
  async mkdir(path: string, o: { mode?: number; owner?: string; parents?: boolean } = {}): Promise<void> {
    await this.#conn.call('POST', `${this.#base}/mkdir`, { json: { path, mode: o.mode, owner: o.owner, parents: o.parents !== false } })
  }

  async remove(path: string, o: { recursive?: boolean } = {}): Promise<void> {
    await this.#conn.call('DELETE', this.#base, { query: { path, recursive: o.recursive } })
  }

  async move(from: string, to: string, o: { overwrite?: boolean } = {}): Promise<void> {
    await this.#conn.call('POST', `${this.#base}/move`, { json: { from, to, overwrite: o.overwrite === true } })
  }

  /** A file or tree as a tar stream. */
  export(path: string, o: { exclude?: readonly string[]; zstd?: boolean } = {}): AsyncGenerator<Uint8Array> {
    return this.#conn.bytes(`${this.#base}/archive`, { query: { path, exclude: o.exclude, compress: o.zstd ? 'zstd' : undefined } })
  }

  /** Unpack a tar stream, plain or compressed with zstd, into a directory. On an error nothing is unpacked. */
  async extract(path: string, archive: Content, o: { owner?: string } = {}): Promise<void> {
    const headers = { 'Content-Type': 'application/x-tar' }
    await this.#conn.call('PUT', `${this.#base}/archive`, { query: { path, owner: o.owner }, content: archive, headers })
  }

  /** Search the files below a directory by name, by content, or by both. */
  search(path: string, o: SearchOptions): Promise<m.SearchResult> {
    return this.#conn.call('POST', `${this.#base}/search`, { json: { path, ...o } })
  }

  /** Apply a unified diff, or a patch of the apply_patch tool, in a directory. All of it is applied, or nothing. */
  patch(path: string, patch: string, o: { dryRun?: boolean } = {}): Promise<m.PatchResult> {
    return this.#conn.call('POST', `${this.#base}/patch`, { json: { path, patch, dryRun: o.dryRun === true } })
  }

  /** Changes as they happen, until the signal or the end of the loop. */
  watch(path: string, o: { recursive?: boolean; signal?: AbortSignal } = {}): AsyncGenerator<FileEvent> {
    return this.#conn.events(`${this.#base}/watch`, { query: { path, recursive: o.recursive }, signal: o.signal })
  }
}
