import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import type { Verb } from "./api";

// ---- figures and times

const units = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes(n: number | undefined): string {
  if (n === undefined || n < 0) return "–";
  let u = 0;
  while (n >= 1024 && u < units.length - 1) {
    n /= 1024;
    u++;
  }
  return `${n >= 100 || u === 0 ? Math.round(n) : Number(n.toFixed(1))} ${units[u]}`;
}

/** Reads a size such as 512m or 2 GiB. Undefined if it is none. */
export function parseBytes(text: string): number | undefined {
  const m = /^\s*([\d.]+)\s*([kmgt]?)(i?b)?\s*$/i.exec(text);
  if (!m) return undefined;
  const n = Number(m[1]) * 1024 ** "kmgt".indexOf((m[2] ?? "").toLowerCase());
  return Number.isFinite(n)
    ? Math.round(m[2] ? n * 1024 : Number(m[1]))
    : undefined;
}

function span(ms: number): string {
  const s = Math.round(Math.abs(ms) / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  if (s < 2 * 365 * 86400) return `${Math.floor(s / 86400)} d`;
  return `${Math.floor(s / 31_556_952)} years`;
}

/** A time, relative, with the exact one on hover. */
export function Time({ at }: { at: string | undefined }) {
  const [, draw] = useState(0);
  useEffect(() => {
    const t = setInterval(() => draw((n) => n + 1), 15_000);
    return () => clearInterval(t);
  }, []);
  if (!at || at.startsWith("0001")) return <span class="dim">–</span>;
  const d = new Date(at);
  const ago = Date.now() - d.getTime();
  const text =
    Math.abs(ago) < 2000
      ? "now"
      : ago >= 0
        ? `${span(ago)} ago`
        : `in ${span(ago)}`;
  return (
    <time dateTime={at} title={d.toLocaleString()}>
      {text}
    </time>
  );
}

// ---- permissions

let verbs: string[] = [];
export function setVerbs(v: string[]) {
  verbs = v;
}
export const may = (v: Verb) => verbs.includes(v) || verbs.includes("admin");
export const why = (v: Verb) => `Your key does not allow “${v}”.`;

// ---- messages

interface Toast {
  id: number;
  text: string;
  hint: string;
  bad: boolean;
  undo: (() => void) | undefined;
}
let toasts: Toast[] = [];
let drawToasts = () => {};
let next = 0;

function toast(t: Omit<Toast, "id">, ms: number) {
  const id = next++;
  toasts = [...toasts.slice(-3), { ...t, id }];
  drawToasts();
  setTimeout(() => {
    toasts = toasts.filter((x) => x.id !== id);
    drawToasts();
  }, ms);
}

export const say = (text: string, undo?: () => void) =>
  toast({ text, hint: "", bad: false, undo }, undo ? 8000 : 4000);

export function complain(e: unknown) {
  const { text, hint } = words(e);
  toast({ text, hint, bad: true, undo: undefined }, 12_000);
}

export function words(e: unknown): { text: string; hint: string } {
  if (e instanceof ApiError)
    return { text: sentence(e.message), hint: sentence(e.hint) };
  return { text: e instanceof Error ? e.message : String(e), hint: "" };
}

const sentence = (s: string) => s.charAt(0).toUpperCase() + s.slice(1);

export function Toasts() {
  const [, draw] = useState(0);
  useEffect(() => {
    drawToasts = () => draw((n) => n + 1);
  }, []);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.map((t) => (
        <div key={t.id} class={"toast" + (t.bad ? " bad" : "")}>
          <div>
            {t.text}
            {t.hint && <div class="dim">{t.hint}</div>}
          </div>
          {t.undo && (
            <button
              class="link"
              onClick={() => {
                t.undo?.();
                toasts = toasts.filter((x) => x !== t);
                draw((n) => n + 1);
              }}
            >
              Undo
            </button>
          )}
          <button
            class="icon"
            aria-label="Dismiss"
            onClick={() => {
              toasts = toasts.filter((x) => x !== t);
              draw((n) => n + 1);
            }}
          >
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

export function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  const { text, hint } = words(error);
  return (
    <div class="problem" role="alert">
      <strong>{text}</strong>
      {hint && <div>{hint}</div>}
    </div>
  );
}

// ---- controls

type ButtonProps = {
  children: ComponentChildren;
  /** May take a while; the button shows that. Its errors are shown. */
  act: () => unknown;
  verb?: Verb | undefined;
  off?: string | false | undefined;
  kind?: "primary" | "danger" | "plain" | undefined;
  label?: string | undefined;
};

export function Button({ children, act, verb, off, kind, label }: ButtonProps) {
  const [busy, setBusy] = useState(false);
  const reason = verb && !may(verb) ? why(verb) : off || "";
  const click = async () => {
    if (reason || busy) return;
    setBusy(true);
    try {
      await act();
    } catch (e) {
      complain(e);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button
      type="button"
      class={"btn " + (kind ?? "plain")}
      onClick={() => void click()}
      aria-disabled={reason ? "true" : "false"}
      aria-busy={busy ? "true" : "false"}
      title={reason || undefined}
      aria-label={label}
    >
      {busy && <span class="spin" aria-hidden="true" />}
      {children}
    </button>
  );
}

/** Takes control of a terminal or desktop, or gives it back. It is off when the
 * stream has ended, for which the reason is given. */
export function Control(props: {
  watching: boolean;
  ended: string;
  act: () => void;
  verb?: Verb;
  kind?: "primary" | "plain";
}) {
  const { watching, ended, ...rest } = props;
  return (
    <Button {...rest} off={ended}>
      {watching ? "Take control" : "Only watch"}
    </Button>
  );
}

export function Field(props: {
  label: string;
  hint?: string | undefined;
  children: JSX.Element;
}) {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small class="dim">{props.hint}</small>}
    </label>
  );
}

export function Dialog(props: {
  title: string;
  close: () => void;
  children: ComponentChildren;
  wide?: boolean;
  /** A click beside the dialog does not close it. */
  busy?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    <dialog
      ref={ref}
      class={props.wide ? "wide" : ""}
      aria-label={props.title}
      onClose={props.close}
      onClick={(e) => e.target === ref.current && !props.busy && props.close()}
    >
      <header>
        <h2>{props.title}</h2>
        <button class="icon" aria-label="Close" onClick={props.close}>
          ×
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

/** Asks before something that cannot be undone, and names its object. */
export function useConfirm() {
  const [ask, setAsk] = useState<{
    title: string;
    text: string;
    yes: string;
    act: () => unknown;
  }>();
  const dialog = ask && (
    <Dialog title={ask.title} close={() => setAsk(undefined)}>
      <p>{ask.text}</p>
      <footer>
        <Button act={() => setAsk(undefined)}>Cancel</Button>
        <Button
          kind="danger"
          act={async () => {
            await ask.act();
            setAsk(undefined);
          }}
        >
          {ask.yes}
        </Button>
      </footer>
    </Dialog>
  );
  return { dialog, ask: setAsk };
}

export function State({
  state,
  reason,
  text = state,
}: {
  state: string;
  reason?: string;
  text?: string;
}) {
  return (
    <span class={"state " + state} title={reason}>
      <i aria-hidden="true" />
      {text}
    </span>
  );
}

const walls: Record<string, string> = {
  none: "none: its programs share the machine's kernel",
  kernel: "kernel: a kernel of its own, in software",
  hardware: "hardware: a virtual machine",
};

/** What is between a sandbox and the machine that runs it. */
export const Wall = ({ of }: { of: string | undefined }) =>
  of ? (
    <>{walls[of] ?? of}</>
  ) : (
    <span class="dim">not known, which counts as none</span>
  );

export function Labels({ of }: { of: Record<string, string> | undefined }) {
  return (
    <>
      {Object.entries(of ?? {}).map(([k, v]) => (
        <span class="chip" key={k} title={`${k}=${v}`}>
          {k}
          {v && <b>{v}</b>}
        </span>
      ))}
    </>
  );
}

export function Empty(props: {
  title: string;
  children?: ComponentChildren;
  error?: unknown;
}) {
  if (props.error) return <Problem error={props.error} />;
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children && <div class="dim">{props.children}</div>}
    </div>
  );
}

export function Card(props: {
  title?: ComponentChildren;
  tools?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={"card " + (props.class ?? "")}>
      {(props.title || props.tools) && (
        <header>
          <h2>{props.title}</h2>
          <div class="tools">{props.tools}</div>
        </header>
      )}
      {props.children}
    </section>
  );
}

/** A small chart of figures over time. */
export function Spark(props: {
  values: number[];
  max?: number | undefined;
  label: string;
  text: string;
}) {
  const w = 240;
  const h = 48;
  const top = Math.max(props.max ?? 0, ...props.values, 1e-9);
  const n = Math.max(props.values.length - 1, 1);
  const points = props.values.map(
    (v, i) => `${(i / n) * w},${h - 2 - (Math.max(v, 0) / top) * (h - 6)}`,
  );
  return (
    <figure class="spark">
      <figcaption>
        <span class="dim">{props.label}</span>
        <b>{props.text}</b>
      </figcaption>
      <svg
        viewBox={`0 0 ${w} ${h}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${props.label}: ${props.text}`}
      >
        {points.length > 1 && (
          <>
            <polygon points={`0,${h} ${points.join(" ")} ${w},${h}`} />
            <polyline points={points.join(" ")} />
          </>
        )}
      </svg>
    </figure>
  );
}

export interface Column<T> {
  head: string;
  cell: (row: T) => ComponentChildren;
  /** Hidden on narrow screens. */
  wide?: boolean;
  right?: boolean;
}

/** A table whose rows can be walked with the arrow keys and opened with Enter. */
export function Table<T>(props: {
  label: string;
  rows: T[];
  id: (row: T) => string;
  columns: Column<T>[];
  open?: ((row: T) => void) | undefined;
}) {
  const key = (e: KeyboardEvent, row: T) => {
    const tr = e.currentTarget as HTMLElement;
    if (e.target !== tr) return;
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[e.key];
    if (step) {
      const to = step > 0 ? tr.nextElementSibling : tr.previousElementSibling;
      (to as HTMLElement | null)?.focus();
      e.preventDefault();
    }
    if (e.key === "Enter" && props.open) props.open(row);
  };
  return (
    <div class="scroll">
      <table aria-label={props.label}>
        <thead>
          <tr>
            {props.columns.map((c) => (
              <th
                key={c.head}
                scope="col"
                class={(c.wide ? "wide " : "") + (c.right ? "right" : "")}
              >
                {c.head || <span class="sr">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr
              key={props.id(row)}
              tabIndex={0}
              class={props.open ? "opens" : ""}
              onKeyDown={(e) => key(e, row)}
              onClick={(e) => {
                if (
                  props.open &&
                  !(e.target as HTMLElement).closest("button,a,input,select")
                )
                  props.open(row);
              }}
            >
              {props.columns.map((c) => (
                <td
                  key={c.head}
                  class={(c.wide ? "wide " : "") + (c.right ? "right" : "")}
                >
                  {c.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Tabs<T extends string>(props: {
  tabs: readonly { id: T; name: string; off?: string | undefined }[];
  at: T;
  go: (id: T) => void;
}) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    list.current
      ?.querySelector("[aria-selected=true]")
      ?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [props.at]);
  return (
    <div class="tabs" role="tablist" ref={list}>
      {props.tabs.map((t) => (
        <button
          key={t.id}
          role="tab"
          aria-selected={t.id === props.at}
          aria-disabled={t.off ? "true" : "false"}
          title={t.off}
          onClick={() => !t.off && props.go(t.id)}
        >
          {t.name}
        </button>
      ))}
    </div>
  );
}

/** Gives a file to the browser. */
export function save(content: Blob, name: string) {
  const a = document.createElement("a");
  a.href = URL.createObjectURL(content);
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60_000);
}

export const go = (to: string) => {
  location.hash = "#" + to;
};
