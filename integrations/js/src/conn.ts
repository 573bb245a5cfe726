/** Requests to a daemon. */
import { connect } from 'node:net'
import { Agent, type Dispatcher, errors as http } from 'undici'
import { WebSocket } from 'ws'

import type { Address } from './address.js'
import { fromAnswer, fromProblem, unreachable } from './errors.js'

/** A query; parameters that are undefined, false or empty are left out. */
export type Query = Record<string, string | number | boolean | readonly string[] | undefined>

/** The body of a request. */
export type Content = string | Uint8Array | AsyncIterable<Uint8Array> | Iterable<Uint8Array>

export interface Ask {
  query?: Query
  /** A value that is sent as JSON. */
  json?: unknown
  content?: Content
  headers?: Record<string, string>
  signal?: AbortSignal | undefined
}

const connectMs = 10_000

/** @internal A connection to a daemon, with separate headers for each request. */
export class Conn {
  readonly headers: Record<string, string> = {}
  readonly #agent: Agent

  constructor(
    readonly address: Address,
    agent?: Agent,
  ) {
    this.#agent =
      agent ??
      new Agent({
        connect: { timeout: connectMs, ...(address.socket && { socketPath: address.socket }) },
        // A command may take hours before it answers.
        headersTimeout: 0,
        bodyTimeout: 0,
        keepAliveTimeout: 55_000,
        // A slow request body must not delay other requests.
        pipelining: 1,
      })
  }

  /** The same connection for requests that carry other headers. */
  plain(): Conn {
    return new Conn(this.address, this.#agent)
  }

  /** Send a request. The caller reads the body. An error status is thrown as an AtollError. */
  async send(method: string, path: string, ask: Ask = {}): Promise<Dispatcher.ResponseData> {
    const headers: Record<string, string> = { ...this.address.headers(), ...this.headers, ...ask.headers }
    let body = ask.content as Dispatcher.DispatchOptions['body']
    if (ask.json !== undefined) {
      headers['Content-Type'] = 'application/json'
      body = JSON.stringify(ask.json)
    } else if (body !== undefined && body !== null) {
      headers['Content-Type'] ??= 'application/octet-stream'
    }
    let answer: Dispatcher.ResponseData
    try {
      answer = await this.#agent.request({
        origin: this.address.base,
        path: path + queryString(ask.query),
        method: method,
        headers,
        ...(body !== undefined && { body }),
        ...(ask.signal && { signal: ask.signal }),
      })
    } catch (e) {
      throw failure(e, ask.signal)
    }
    if (answer.statusCode < 200 || answer.statusCode > 299) {
      const retry = answer.headers['retry-after']
      throw fromAnswer(answer.statusCode, await answer.body.text().catch(() => ''), typeof retry === 'string' ? retry : undefined)
    }
    return answer
  }

  /** Make a request with a JSON response. */
  async call<T>(method: string, path: string, ask: Ask = {}): Promise<T> {
    const answer = await this.send(method, path, ask)
    try {
      const text = await answer.body.text()
      return (text ? JSON.parse(text) : undefined) as T
    } catch (e) {
      throw failure(e, ask.signal)
    }
  }

  /** The bytes of the response to GET, or to POST with a body. */
  async *bytes(path: string, ask: Ask = {}): AsyncGenerator<Uint8Array> {
    const { body } = await this.send(ask.json === undefined ? 'GET' : 'POST', path, ask)
    body.on('error', () => {}) // the reader may stop before the end
    try {
      for await (const chunk of body) yield chunk as Uint8Array
    } catch (e) {
      throw failure(e, ask.signal)
    } finally {
      body.destroy()
    }
  }

  /** JSON lines, as bytes. */
  async *lines<T>(path: string, ask: Ask = {}): AsyncGenerator<T> {
    for await (const line of this.#text(path, ask)) {
      const data: unknown = JSON.parse(line)
      const error = typeof data === 'object' && data !== null && 'error' in data ? fromProblem(data.error) : undefined
      if (error) throw error
      yield data as T
    }
  }

  /** The data of server-sent events. */
  async *events<T>(path: string, ask: Ask = {}): AsyncGenerator<T> {
    let kind = ''
    for await (const line of this.#text(path, ask)) {
      if (line.startsWith('event: ')) kind = line.slice(7)
      if (!line.startsWith('data: ')) continue
      if (kind === 'end') return
      const data: unknown = JSON.parse(line.slice(6))
      if (kind === 'error') throw fromProblem(data) ?? unreachable()
      yield data as T
    }
  }

  async *#text(path: string, ask: Ask): AsyncGenerator<string> {
    const decoder = new TextDecoder()
    let rest = ''
    for await (const chunk of this.bytes(path, ask)) {
      const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
      rest = lines.pop() ?? ''
      yield* lines
    }
    if (rest) yield rest
  }

  /**
   * Open a WebSocket, which is paused: messages may arrive together with the response. The caller adds its listeners, resumes the
   * WebSocket and closes it.
   */
  async websocket(path: string): Promise<WebSocket> {
    const socket = this.address.socket
    const ws = new WebSocket(`ws${this.address.base.slice('http'.length)}${path}`, {
      headers: { ...this.address.headers(), ...this.headers },
      perMessageDeflate: false,
      handshakeTimeout: connectMs,
      ...(socket && { createConnection: () => connect(socket) }),
    })
    return new Promise((resolve, reject) => {
      const ignore = () => {}
      ws.once('error', (e) => {
        ws.on('error', ignore)
        reject(unreachable(e))
      })
      ws.once('unexpected-response', (_request, answer) => {
        let body = ''
        answer.setEncoding('utf8')
        answer.on('data', (piece: string) => {
          body += piece
        })
        answer.once('close', () => {
          reject(fromAnswer(answer.statusCode ?? 0, body, answer.headers['retry-after']))
          ws.on('error', ignore)
          ws.terminate()
        })
      })
      ws.once('open', () => {
        ws.removeAllListeners()
        ws.on('error', ignore) // a close event follows
        ws.pause()
        resolve(ws)
      })
    })
  }

  async close(): Promise<void> {
    await this.#agent.destroy()
  }
}

function failure(e: unknown, signal: AbortSignal | undefined): unknown {
  if (signal?.aborted) return signal.reason
  return e instanceof http.InvalidArgumentError ? e : unreachable(e)
}

function queryString(query: Query = {}): string {
  const out = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === false || value === '') continue
    for (const one of Array.isArray(value) ? value : [value]) out.append(name, String(one))
  }
  const text = out.toString()
  return text && `?${text}`
}

/** @internal */
export function labelsQuery(labels: Record<string, string> = {}): string[] {
  return Object.entries(labels).map(([k, v]) => `${k}=${v}`)
}

/** @internal One segment of a path. */
export function segment(text: string): string {
  // Dots would be resolved as directories.
  return encodeURIComponent(text).replace(/^\.+$/, (dots) => '%2E'.repeat(dots.length))
}
