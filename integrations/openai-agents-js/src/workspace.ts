/** The file operations of the SDK on a sandbox. */
import { lstat, readdir, readFile } from 'node:fs/promises'
import path from 'node:path'

import { AlreadyExistsError, NotFoundError, type Sandbox } from '@atoll/sdk'
import { applyDiff, type Editor } from '@openai/agents-core'
import {
  type Entry,
  type Manifest,
  permissionsForSandboxEntry,
  SandboxApplyPatchFileNotFoundError,
  SandboxGitCloneError,
  SandboxLocalDirReadError,
  SandboxLocalFileReadError,
  SandboxPathResolutionError,
  SandboxUnsupportedFeatureError,
  SandboxWorkspaceArchiveReadError,
  SandboxWorkspaceArchiveWriteError,
  SandboxWorkspaceReadNotFoundError,
  WorkspacePathPolicy,
} from '@openai/agents-core/sandbox'

import { told } from './errors.js'

const posix = path.posix

/** Prints the real paths of the root and of a path, which need not exist yet. */
const realPath = `
real() {
  p=$1; rest=
  while [ ! -e "$p" ] && [ ! -L "$p" ]; do rest=/\${p##*/}$rest; p=\${p%/*}; [ -n "$p" ] || p=/; done
  r=$(readlink -f -- "$p" && echo .) || exit 3
  printf '%s%s\\0' "\${r%??}" "$rest"
}
for it; do real "$it"; done`

/** @internal */
export class WorkspaceFiles {
  constructor(
    readonly current: () => Sandbox,
    readonly manifest: () => Manifest,
  ) {}

  get sandbox(): Sandbox {
    return this.current()
  }

  /** The real path of a path. It must be in the workspace or in a path that the manifest grants. */
  async resolve(name = '', forWrite = false): Promise<string> {
    const { root, extraPathGrants } = this.manifest()
    const wanted = new WorkspacePathPolicy({ root, extraPathGrants }).resolve(name, { forWrite }).path
    const tops = [root, ...extraPathGrants.filter((g) => !forWrite || !g.readOnly).map((g) => g.path)]
    const r = await told('exec', { path: name }, () => this.sandbox.run(['/bin/sh', '-c', realPath, 'sh', wanted, ...tops]))
    const [real = '', ...realTops] = r.stdout.toString().split('\0')
    if (!r.ok || !realTops.slice(0, tops.length).some((top) => real === top || real.startsWith(top === '/' ? top : `${top}/`))) {
      throw new SandboxPathResolutionError(`${name} leads out of the workspace`, { provider: 'atoll', path: name, root })
    }
    return real
  }

  async read(name: string, o: { maxBytes?: number; runAs?: string } = {}): Promise<Uint8Array> {
    const real = await this.resolve(name)
    if (!o.runAs) return told('read', { path: name }, () => this.sandbox.files.read(real, { length: o.maxBytes }))
    const args = o.maxBytes === undefined ? ['cat', '--', real] : ['head', '-c', String(o.maxBytes), '--', real]
    const r = await told('read', { path: name }, () => this.sandbox.run(args, { user: o.runAs, outputLimit: 16 << 20 }))
    if (!r.ok || r.truncated) {
      if (!(await this.exists(name)))
        throw new SandboxWorkspaceReadNotFoundError(`${name} does not exist`, { provider: 'atoll', path: name })
      throw new SandboxWorkspaceArchiveReadError(`${name} cannot be read: ${r.truncated ? 'it is too long' : r.stderr.toString()}`, {
        path: name,
      })
    }
    return r.stdout
  }

  async exists(name: string, kind = '-e', runAs?: string): Promise<boolean> {
    const real = await this.resolve(name)
    return (await told('exec', { path: name }, () => this.sandbox.run(['test', kind, real], { user: runAs }))).code === 0
  }

  async write(name: string, content: string | Uint8Array, o: { runAs?: string; replace?: boolean } = {}): Promise<void> {
    const real = await this.resolve(name, true)
    await told('write', { path: name }, () => this.sandbox.files.write(real, content, { owner: o.runAs, replace: o.replace }))
  }

  async remove(name: string): Promise<void> {
    // Remove the link, not its target.
    const parent = await this.resolve(posix.dirname(posix.resolve(this.manifest().root, name)), true)
    await told('write', { path: name }, () => this.sandbox.files.remove(posix.join(parent, posix.basename(name)), { recursive: true }))
  }

  editor(runAs?: string): Editor {
    return {
      createFile: async (op) => {
        try {
          await this.write(op.path, applyDiff('', op.diff, 'create'), { runAs, replace: false })
        } catch (e) {
          if (e instanceof Error && e.cause instanceof AlreadyExistsError)
            throw new SandboxWorkspaceArchiveWriteError(`${op.path} exists already`, { path: op.path })
          throw e
        }
        return {}
      },
      updateFile: async (op) => {
        const old = await this.#text(op.path, runAs)
        const moved = op.moveTo !== undefined && op.moveTo !== op.path
        await this.write(moved && op.moveTo ? op.moveTo : op.path, applyDiff(old, op.diff), { runAs })
        if (moved) await this.remove(op.path)
        return {}
      },
      deleteFile: async (op) => {
        await this.#text(op.path, runAs)
        await this.remove(op.path)
        return {}
      },
    }
  }

  async #text(name: string, runAs?: string): Promise<string> {
    try {
      return new TextDecoder('utf-8', { fatal: false }).decode(await this.read(name, { runAs }))
    } catch (e) {
      if (e instanceof SandboxWorkspaceReadNotFoundError)
        throw new SandboxApplyPatchFileNotFoundError(`${name} does not exist`, { path: name })
      throw e
    }
  }

  /** Create an entry of a manifest. */
  async materialize(name: string, entry: Entry, runAs?: string): Promise<void> {
    switch (entry.type) {
      case 'dir':
        await this.#mkdir(name)
        for (const [child, it] of Object.entries(entry.children ?? {})) await this.materialize(posix.join(name, child), it, runAs)
        break
      case 'file':
        await this.write(name, entry.content, { runAs })
        break
      case 'local_file':
        await this.write(name, await localFile(entry.src), { runAs })
        break
      case 'local_dir':
        await this.#localDir(name, path.resolve(entry.src), runAs)
        break
      case 'git_repo':
        await this.#clone(name, entry, runAs)
        break
      default:
        throw new SandboxUnsupportedFeatureError('Atoll does not mount entries of a manifest; use the option workspace', {
          provider: 'atoll',
          path: name,
          type: entry.type,
        })
    }
    if (entry.permissions !== undefined) {
      const mode = (permissionsForSandboxEntry(entry.permissions).toMode() & 0o7777).toString(8)
      await this.#run('write', ['chmod', mode, await this.resolve(name, true)])
    }
    if (entry.group)
      await this.#run('write', ['chgrp', typeof entry.group === 'string' ? entry.group : entry.group.name, await this.resolve(name, true)])
  }

  async #mkdir(name: string): Promise<void> {
    const real = await this.resolve(name, true)
    await told('write', { path: name }, () => this.sandbox.files.mkdir(real))
  }

  async #run(during: 'write' | 'exec', args: string[], user?: string): Promise<void> {
    const r = await told(during, {}, () => this.sandbox.run(args, { user }))
    if (!r.ok)
      throw new SandboxWorkspaceArchiveWriteError(`${args[0] ?? ''} failed: ${r.stderr.toString().trim()}`, {
        provider: 'atoll',
        exitCode: r.code,
      })
  }

  async #localDir(name: string, from: string, runAs?: string): Promise<void> {
    await this.#mkdir(name)
    let found
    try {
      if (!(await lstat(from)).isDirectory()) throw new Error('it is not a directory')
      found = await readdir(from, { withFileTypes: true })
    } catch (e) {
      throw new SandboxLocalDirReadError(`${from} cannot be read: ${String(e)}`, { path: from })
    }
    for (const it of found) {
      const at = path.join(from, it.name)
      if (it.isDirectory()) await this.#localDir(posix.join(name, it.name), at, runAs)
      else if (it.isFile()) await this.write(posix.join(name, it.name), await localFile(at), { runAs })
      else throw new SandboxLocalDirReadError(`${at} is neither a file nor a directory`, { path: at })
    }
  }

  async #clone(name: string, entry: Extract<Entry, { type: 'git_repo' }>, runAs?: string): Promise<void> {
    const real = await this.resolve(name, true)
    const url = /^[a-z+]+:\/\//.test(entry.repo) ? entry.repo : `https://${entry.host ?? 'github.com'}/${entry.repo}.git`
    const script = `set -e; t=$(mktemp -d); git clone -q -- "$1" "$t/r"; [ -z "$2" ] || git -C "$t/r" checkout -q "$2" --; mkdir -p -- "$4"; cp -a -- "$t/r/$3/." "$4"; rm -rf "$t"`
    const r = await told('exec', { path: name }, () =>
      this.sandbox.run(['/bin/sh', '-c', script, 'sh', url, entry.ref ?? '', entry.subpath ?? '.', real], { user: runAs }),
    )
    if (!r.ok) throw new SandboxGitCloneError(`git failed: ${r.stderr.toString().trim()}`, { provider: 'atoll', path: name })
  }

  /** A tar of the workspace, without the ephemeral entries of the manifest. */
  async persist(): Promise<Uint8Array> {
    const { root } = this.manifest()
    const excludes = [...this.manifest().ephemeralPersistencePaths()].map((p) => `--exclude=./${p.replace(/[\\*?[\]]/g, '\\$&')}`)
    const details = { path: root }
    return told('read', details, async () => {
      const p = await this.sandbox.exec(['tar', '-C', root, '-cf', '-', ...excludes, '.'])
      try {
        const { stdout, stderr } = await p.communicate()
        const { code } = await p.wait()
        if (code !== 0)
          throw new SandboxWorkspaceArchiveReadError(`tar failed: ${stderr.toString().trim()}`, { ...details, exitCode: code })
        return stdout
      } finally {
        await p.close()
      }
    })
  }

  /** Replace the workspace by the content of a tar, atomically. */
  async hydrate(archive: Uint8Array): Promise<void> {
    const { root } = this.manifest()
    const aside = `/tmp/.atoll-${Math.random().toString(36).slice(2)}`
    const swap = 'set -e; find "$1" -mindepth 1 -maxdepth 1 -exec rm -rf -- {} +; cp -a -- "$2/." "$1"'
    try {
      await told('write', { path: root, reason: 'unsafe_or_invalid_tar' }, () => this.sandbox.files.extract(aside, archive))
      await this.#run('write', ['/bin/sh', '-c', swap, 'sh', root, aside])
    } finally {
      await this.sandbox.files.remove(aside, { recursive: true }).catch((e: unknown) => {
        if (!(e instanceof NotFoundError)) throw e
      })
    }
  }
}

async function localFile(name: string): Promise<Uint8Array> {
  try {
    return await readFile(name)
  } catch (e) {
    throw new SandboxLocalFileReadError(`${name} cannot be read: ${String(e)}`, { path: name })
  }
}
