import type { components } from "./schema";

export type Schemas = components["schemas"];
export type Sandbox = Schemas["Sandbox"];
export type Event = Schemas["Event"];
export type Session = Schemas["Session"];
export type Verb = "read" | "exec" | "write" | "admin";

/** The page's half of its credentials; the cookie is the other. See Token in
 * internal/server/console. */
const stored = "atoll.half";
let half = localStorage.getItem(stored) ?? "";

/** The address of the API, which is beside the console. */
const root = new URL("../", new URL("./", location.href));

/** A refusal of the API, with what to do about it. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint = "",
  ) {
    super(message);
  }
}

/** Whether the daemon could not be reached at all. */
export const isOffline = (e: unknown): boolean =>
  e instanceof ApiError && e.code === "offline";

let signedOut = () => {};
/** Sets what happens when the daemon no longer accepts the credentials. */
export function onSignedOut(f: () => void) {
  signedOut = f;
}

export const signedIn = () => half !== "";

export type Query = Record<
  string,
  string | number | boolean | undefined | string[]
>;

function address(path: string, query: Query = {}): URL {
  const url = new URL(path.replace(/^\//, ""), root);
  for (const [k, v] of Object.entries(query)) {
    if (Array.isArray(v)) for (const one of v) url.searchParams.append(k, one);
    else if (v !== undefined && v !== "") url.searchParams.set(k, String(v));
  }
  return url;
}

export interface Options {
  query?: Query;
  /** Sent as JSON. */
  json?: unknown;
  /** Sent as it is. */
  body?: BodyInit;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  /** Sent without the credentials of the page. */
  anonymous?: boolean;
}

/** Makes a request and returns its response, or throws an ApiError. */
export async function request(
  method: string,
  path: string,
  o: Options = {},
): Promise<Response> {
  const headers: Record<string, string> = { ...o.headers };
  if (half && !o.anonymous) headers["Atoll-Console"] = half;
  if (o.json !== undefined) headers["Content-Type"] = "application/json";
  let r: Response;
  try {
    r = await fetch(address(path, o.query), {
      method,
      headers,
      body: o.json !== undefined ? JSON.stringify(o.json) : (o.body ?? null),
      signal: o.signal ?? null,
      cache: "no-store",
    });
  } catch (e) {
    if (o.signal?.aborted) throw e;
    throw new ApiError(
      0,
      "offline",
      "the daemon does not answer",
      "start it with: atoll up",
    );
  }
  if (r.ok) return r;
  const p = (await r.json().catch(() => ({}))) as Partial<Schemas["Problem"]>;
  const error = new ApiError(
    r.status,
    p.code ?? "internal",
    [p.subject, p.detail ?? p.title ?? r.statusText].filter(Boolean).join(": "),
    p.hint,
  );
  if (r.status === 401 && half && !o.anonymous && path !== "console/session") {
    half = "";
    localStorage.removeItem(stored);
    signedOut();
  }
  throw error;
}

/** Makes a request and returns the JSON of its response. */
export async function call<T>(
  method: string,
  path: string,
  o: Options = {},
): Promise<T> {
  const r = await request(method, path, o);
  return (r.status === 204 ? undefined : await r.json()) as T;
}

export const get = <T>(path: string, query: Query = {}) =>
  call<T>("GET", path, { query });

/** Signs in with a one-time code or an API key. */
export async function signIn(credentials: { code: string } | { key: string }) {
  const { half: mine } = await call<{ half: string }>(
    "POST",
    "console/session",
    { json: credentials },
  );
  half = mine;
  localStorage.setItem(stored, mine);
}

export async function signOut() {
  await call("DELETE", "console/session").catch(() => {});
  half = "";
  localStorage.removeItem(stored);
  signedOut();
}

/** Opens a WebSocket of the API. */
export function socket(path: string, query: Query = {}): WebSocket {
  const url = address(path, query);
  url.protocol = url.protocol.replace("http", "ws");
  const ws = new WebSocket(url, ["atoll", "atoll.console." + half]);
  ws.binaryType = "arraybuffer";
  return ws;
}

/** Opens the WebSocket of a stream. Its token is the only credential. */
export function streamSocket(path: string, token: string): WebSocket {
  const url = address(path);
  url.protocol = url.protocol.replace("http", "ws");
  const ws = new WebSocket(url, ["atoll", "atoll.token." + token]);
  ws.binaryType = "arraybuffer";
  return ws;
}

/** Reads a response of JSON lines. */
export async function* lines<T>(r: Response): AsyncGenerator<T> {
  for await (const line of textLines(r)) {
    if (line) yield JSON.parse(line) as T;
  }
}

async function* textLines(r: Response): AsyncGenerator<string> {
  if (!r.body) return;
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop() ?? "";
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    await reader.cancel().catch(() => {});
  }
}

/** Reads a response of server-sent events. */
export async function* serverEvents(
  r: Response,
): AsyncGenerator<{ id: string; event: string; data: string }> {
  let id = "";
  let event = "";
  let data = "";
  for await (const line of textLines(r)) {
    if (line === "") {
      if (data) yield { id, event, data };
      event = data = "";
      continue;
    }
    const at = line.indexOf(":");
    const value = line.slice(at + 1).replace(/^ /, "");
    if (line.startsWith("id:")) id = value;
    if (line.startsWith("event:")) event = value;
    if (line.startsWith("data:")) data += value;
  }
}

/** Runs a short command in a sandbox and returns its output. */
export async function run(ref: string, args: string[]): Promise<string> {
  const r = await call<Schemas["ExecResult"]>(
    "POST",
    `v1/sandboxes/${ref}/exec`,
    { json: { args } },
  );
  if (r.exit?.code !== 0)
    throw new ApiError(
      200,
      "failed",
      (r.stderr?.data ?? "").trim() || `the command ended with ${r.exit?.code}`,
    );
  return r.stdout?.data ?? "";
}
