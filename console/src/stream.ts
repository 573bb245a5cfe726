import { ApiError, call, streamSocket } from "./api";
import type { Schemas } from "./api";

export type StreamAccess = Schemas["StreamAccess"];

/** How to get into a stream: at first, and after its connection was lost. */
export interface Entry {
  open(): Promise<StreamAccess>;
  again(last: StreamAccess): Promise<StreamAccess>;
  /** Other words for reasons why the daemon ended the stream. */
  reasons?: Record<string, string>;
  /** Whether the stream goes on after the end of its sandbox, in the next one of
   * a session. */
  follows?(last: StreamAccess): boolean;
}

/** The entry of a signed-in page to a stream of a sandbox. */
export function entry(ref: string, wanted: Schemas["NewStream"]): Entry {
  const path = `v1/sandboxes/${ref}/streams`;
  const open = () => call<StreamAccess>("POST", path, { json: wanted });
  return {
    open,
    again: (last) =>
      call<StreamAccess>("POST", `${path}/${last.id}/token`, {
        json: {},
      }).catch((e: unknown) => {
        // The daemon was started again, and knows of no stream.
        if (e instanceof ApiError && e.code === "not_found") return open();
        throw e;
      }),
  };
}

/** The entry of a page that a link opened. Without a code, the page is loaded
 * again. The page has a token, and no key: it gets the next token for that one. */
export function linkEntry(id: string, code: string): Entry {
  const kept = "atoll.view." + id;
  const stale = (text: string) =>
    new ApiError(
      401,
      "unauthorized",
      text,
      "ask whoever sent it for a new one",
    );
  const exchange = async (json: Schemas["StreamRedemption"]) => {
    const access = await call<StreamAccess>("POST", `v1/streams/${id}/token`, {
      json,
      anonymous: true,
    });
    sessionStorage.setItem(kept, JSON.stringify(access));
    return access;
  };
  const again = async (last: StreamAccess) => {
    if (Date.parse(last.expiresAt) < Date.now())
      throw stale("the time of the link is over");
    return exchange({ token: last.token });
  };
  let first: Promise<StreamAccess> | undefined;
  const open = async () => {
    if (code) return exchange({ code });
    const text = sessionStorage.getItem(kept);
    if (!text) throw stale("the link was used already, or is too old");
    return again(JSON.parse(text) as StreamAccess);
  };
  return {
    open: () =>
      (first ??= open().catch((e: unknown) => {
        first = undefined;
        throw e;
      })),
    again,
    follows: (last) => last.leaseEpoch > 0,
    reasons: {
      unauthorized:
        "The time of the link is over, or the daemon was started again. Ask for a new link.",
    },
  };
}

/** Why the daemon ended a stream for good, in words. */
const reasons: Record<string, string> = {
  revoked: "The stream was revoked.",
  "grant-revoked": "The key that opened this stream has ended.",
  consent_required: "The owner of the machine does not share its screen.",
  reaped: "The sandbox has ended.",
  "taken-over": "Another connection has taken over the command.",
  "too-many-viewers": "There are too many viewers.",
  "terminal-unavailable": "The terminal is not there any more.",
  unauthorized: "The daemon refused the token.",
};

const maxTries = 40;

export interface Handlers {
  /** A new connection. Its messages are the caller's. */
  connected(ws: WebSocket, access: StreamAccess): void;
  /** The connection is lost, and is made again. */
  lost(why: string): void;
  /** The stream has ended. */
  ended(error: unknown): void;
}

/** Keeps a stream connected until stop is called. */
export class Connection {
  private access: StreamAccess | undefined;
  private ws: WebSocket | undefined;
  private tries = 0;
  private timer = 0;
  private over = false;

  constructor(
    private readonly entry: Entry,
    private readonly on: Handlers,
  ) {
    void this.connect();
  }

  /** The connection works: a loss of it is the first again. */
  works() {
    this.tries = 0;
  }

  stop() {
    this.over = true;
    clearTimeout(this.timer);
    this.ws?.close();
  }

  /** Makes the connection again after a promise, without its loss. */
  async reconnect(ready: Promise<void>) {
    const old = this.ws;
    this.ws = undefined;
    old?.close();
    await ready;
    if (!this.over) void this.connect();
  }

  private async connect() {
    try {
      const access = this.access
        ? await this.entry.again(this.access)
        : await this.entry.open();
      if (this.over) return;
      this.access = access;
      const ws = streamSocket(access.url, access.token);
      this.ws = ws;
      ws.addEventListener("close", (e) => {
        if (!this.over && ws === this.ws) this.closed(e.reason);
      });
      this.on.connected(ws, access);
    } catch (e) {
      if (this.over) return;
      const passing =
        e instanceof ApiError &&
        (e.code === "offline" || e.code === "unavailable");
      if (!passing) this.on.ended(e);
      else this.later("");
    }
  }

  private closed(reason: string) {
    if (reason === "exit") return;
    const known = this.entry.reasons?.[reason] ?? reasons[reason];
    const goes =
      reason === "reaped" && this.access && this.entry.follows?.(this.access);
    if (known && !goes) this.on.ended(new Error(known));
    else this.later(reason);
  }

  private later(reason: string) {
    if (this.tries++ >= maxTries)
      return this.on.ended(new Error("The connection is lost."));
    this.on.lost(reason);
    if (this.over) return;
    this.timer = window.setTimeout(
      () => void this.connect(),
      Math.min(250 * this.tries, 3000),
    );
  }
}
