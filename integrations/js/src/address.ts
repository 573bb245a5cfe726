/** Where the daemon is. */
import { execFile } from 'node:child_process'
import { isIP } from 'node:net'
import path from 'node:path'

import { InvalidError, UnavailableError, UnsupportedError } from './errors.js'

/** The host name in requests to a daemon over its Unix socket. */
const local = 'atoll'

/** @internal The address of a daemon, and the API key for it. */
export class Address {
  readonly #key: string

  constructor(
    readonly base: string,
    /** Path of a Unix socket; empty for TCP. */
    readonly socket: string,
    key: string,
    /** The address was given; otherwise it is the socket of this user's daemon. */
    readonly named: boolean,
    /** The tenant to act in, which the owner of the machine may choose. */
    readonly tenant = '',
  ) {
    this.#key = key
  }

  /** The daemon that host names, else $ATOLL_HOST, else the one of the state directory. */
  static find(host = '', key = '', tenant = ''): Address {
    if (!host) {
      host = process.env.ATOLL_HOST ?? ''
      key ||= process.env.ATOLL_KEY ?? ''
    }
    if (!host) return new Address(`http://${local}`, path.join(stateDirectory(), 'atoll.sock'), key, false, tenant)
    if (host.startsWith('unix:///')) return new Address(`http://${local}`, host.slice('unix://'.length), key, true, tenant)
    const u = parse(host)
    if (u && !u.username && !u.password && !u.search && !u.hash) {
      if ((u.protocol === 'http:' || u.protocol === 'https:') && u.host && u.pathname === '/')
        return new Address(u.origin, '', key, true, tenant)
    }
    throw new InvalidError('is not the address of a daemon', {
      op: 'client.new',
      subject: 'host',
      hint: 'write unix:///path/of/atoll.sock or https://host:port',
    })
  }

  headers(): Record<string, string> {
    const out: Record<string, string> = {}
    if (this.#key) out.Authorization = `Bearer ${this.#key}`
    if (this.tenant) out['Atoll-Tenant'] = this.tenant
    for (const name of ['traceparent', 'tracestate']) {
      const value = process.env[name.toUpperCase()]
      if (process.env.TRACEPARENT && value && value.length <= 512 && /^[\x20-\x7e]*$/.test(value)) out[name] = value
    }
    return out
  }

  /** The URL of an HTTP server on a port of a sandbox. */
  portURL(port: number, sandbox: string): string {
    const u = new URL(this.base)
    let host = u.hostname
    if (isIP(host.replace(/^\[|\]$/g, ''))) host = host.startsWith('127.') || host === '[::1]' ? 'localhost' : ''
    const label = `${port}-${sandbox}`
    if (this.socket || !host || !Number.isInteger(port) || port < 1 || port > 65535 || label.length > 63) {
      throw new UnsupportedError('there is no host name for this port', {
        op: 'port.url',
        subject: String(port),
        hint: 'reach the daemon over TCP by a name that it was given with --host, or use dial',
      })
    }
    return `${u.protocol}//${label}.${host}${u.port && `:${u.port}`}`
  }
}

function parse(text: string): URL | null {
  try {
    return new URL(text)
  } catch {
    return null
  }
}

/** The state directory of this user's daemon. */
function stateDirectory(): string {
  const { ATOLL_STATE_DIR: state, XDG_STATE_HOME: xdg, HOME: home } = process.env
  if (state) return path.resolve(state)
  if (process.geteuid?.() === 0) return '/var/lib/atoll'
  for (const base of [xdg ?? '', home ? path.join(home, '.local/state') : '']) if (path.isAbsolute(base)) return path.join(base, 'atoll')
  throw new UnavailableError('there is no home directory to look for a daemon in', { op: 'client.new', hint: 'set ATOLL_HOST' })
}

/** @internal Start a daemon in the background, as the command line does, unless one runs. */
export async function startDaemon(): Promise<void> {
  const no = process.env.ATOLL_NO_DAEMON ?? ''
  const fields = { op: 'daemon.start', hint: 'start one with: atoll up' }
  if (no && !['0', 'f', 'false'].includes(no.toLowerCase())) throw new UnavailableError('no daemon runs', fields)
  await new Promise<void>((resolve, reject) => {
    const child = execFile(
      process.env.ATOLL_BIN || 'atoll',
      ['up', '--detach'],
      { cwd: '/', timeout: 90_000 },
      (error, _stdout, stderr) => {
        if (!error) return resolve()
        if (error.code === 'ENOENT') {
          return reject(
            new UnavailableError('no daemon runs, and there is no program atoll', { ...fields, hint: 'install it, or set ATOLL_HOST' }),
          )
        }
        const said = (kind: string) => stderr.match(new RegExp(`^atoll: ${kind}: (.*)$`, 'm'))?.[1]
        reject(new UnavailableError(said('error') ?? 'the daemon could not be started', { ...fields, hint: said('hint') ?? fields.hint }))
      },
    )
    child.stdin?.end()
  })
}
