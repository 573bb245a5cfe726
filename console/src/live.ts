import { useEffect, useRef, useState } from "preact/hooks";
import { get, isOffline, request, serverEvents, signedIn } from "./api";
import type { Event } from "./api";

/** How many events the page remembers. */
const kept = 500;

type Listener = (e: Event) => void;
const listeners = new Set<Listener>();
const watchers = new Set<() => void>();

/** The latest events, oldest first. */
export let recent: Event[] = [];
/** Whether events arrive. The page says so when they do not. */
export let connected = true;

let abort: AbortController | undefined;

/** Follows the events of the daemon until stop. After a lost connection it goes
 * on with the event after the last, and tells all listeners to load again. */
export function follow() {
  stop();
  abort = new AbortController();
  void loop(abort.signal);
}

export function stop() {
  abort?.abort();
  abort = undefined;
}

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

async function loop(signal: AbortSignal) {
  let after = -1;
  for (let tries = 0; !signal.aborted && signedIn(); tries++) {
    try {
      if (after < 0) {
        const since = new Date(Date.now() - 3600_000).toISOString();
        recent = await history(since);
        after = recent.at(-1)?.seq ?? 0;
      }
      const r = await request("GET", "v1/events/stream", {
        query: { after },
        signal,
      });
      tries = 0;
      setConnected(true);
      for await (const e of serverEvents(r)) {
        if (e.event !== "event") continue;
        const event = JSON.parse(e.data) as Event;
        after = event.seq;
        recent = [...recent.slice(-kept + 1), event];
        for (const l of [...listeners]) l(event);
      }
    } catch (e) {
      if (signal.aborted) return;
      if (!isOffline(e) && tries > 0) after = -1; // the log began anew
    }
    if (signal.aborted) return;
    setConnected(false);
    await pause(Math.min(500 * 2 ** Math.min(tries, 4), 5000));
  }
}

async function history(since: string): Promise<Event[]> {
  const all: Event[] = [];
  for (let after = 0; ;) {
    const { events } = await get<{ events: Event[] }>("v1/events", {
      since,
      after,
      limit: 1000,
    });
    all.push(...events);
    const last = events.at(-1);
    if (!last || events.length < 1000) return all.slice(-kept);
    after = last.seq;
  }
}

function setConnected(now: boolean) {
  const was = connected;
  connected = now;
  if (was !== now) for (const w of [...watchers]) w();
}

/** Draws again when the connection is lost or found. */
export function useConnected(): boolean {
  const [, draw] = useState(0);
  useEffect(() => {
    const w = () => draw((n) => n + 1);
    watchers.add(w);
    return () => void watchers.delete(w);
  }, []);
  return connected;
}

/** Calls f with each new event. */
export function useEvents(f: Listener) {
  const latest = useRef(f);
  latest.current = f;
  useEffect(() => {
    const l = (e: Event) => latest.current(e);
    listeners.add(l);
    return () => void listeners.delete(l);
  }, []);
}

/** The latest events that match, which grow as they arrive. */
export function useRecent(match: (e: Event) => boolean): Event[] {
  const [, draw] = useState(0);
  useEvents((e) => match(e) && draw((n) => n + 1));
  const back = useConnected();
  useEffect(() => draw((n) => n + 1), [back]);
  return recent.filter(match);
}

export interface Loaded<T> {
  data: T | undefined;
  error: unknown;
  reload: () => void;
}

/** Loads data, and loads it again after events whose type or operation matches,
 * and when the connection is back. Old data stays until the new is there. */
export function useLoad<T>(
  load: () => Promise<T>,
  deps: readonly unknown[],
  changes?: RegExp,
): Loaded<T> {
  const [state, set] = useState<{ data: T | undefined; error: unknown }>({
    data: undefined,
    error: undefined,
  });
  const [turn, again] = useState(0);
  const timer = useRef(0);
  const back = useConnected();
  const reload = () => again((n) => n + 1);
  useEffect(() => set({ data: undefined, error: undefined }), deps);
  useEffect(() => {
    if (!back) return;
    let over = false;
    load().then(
      (data) => over || set({ data, error: undefined }),
      (error: unknown) =>
        over || set((old) => (isOffline(error) ? old : { ...old, error })),
    );
    return () => {
      over = true;
    };
  }, [...deps, turn, back]);
  useEvents((e) => {
    if (!changes || !(changes.test(e.type) || changes.test(e.op))) return;
    if (e.type === "attempted") return;
    clearTimeout(timer.current);
    timer.current = window.setTimeout(reload, 150);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
  return { ...state, reload };
}

/** Calls load at once and then at an interval, while the page is visible. For
 * figures that have no events. */
export function useSamples<T>(
  load: () => Promise<T>,
  ms: number,
  deps: readonly unknown[],
): T[] {
  const [samples, set] = useState<T[]>([]);
  useEffect(() => {
    set([]);
    let over = false;
    const tick = async () => {
      while (!over) {
        if (!document.hidden) {
          const one = await load().catch(() => undefined);
          if (one !== undefined && !over)
            set((old) => [...old.slice(-119), one]);
        }
        await pause(ms);
      }
    };
    void tick();
    return () => {
      over = true;
    };
  }, deps);
  return samples;
}
