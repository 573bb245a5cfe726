import { FitAddon } from "@xterm/addon-fit";
import { Terminal as Xterm } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "preact/hooks";
import { Connection } from "../stream";
import type { Entry } from "../stream";
import { Button, complain, Problem, words } from "../ui";

const fontSize = 13;
/** Typed bytes that have not arrived are bounded by this. */
const maxTyped = 8 << 20;
const maxMessage = 16_384;
/** With more undrawn output, the page asks for the screen in its place. */
const maxUndrawn = 4 << 20;

interface Message {
  type: string;
  size?: { cols: number; rows: number };
  terminal?: string;
  offset?: number;
  input?: number;
  exit?: { code: number };
}

/** A terminal that viewers share. Its size is that of the smallest window of
 * those who may type. After a lost connection, no byte is lost or repeated, in
 * either direction, as long as the daemon has them. */
export default function Screen(props: {
  entry: Entry;
  control: boolean;
  shown: boolean;
  /** Called when the stream or its command ended and a person asks for another. */
  another?: (() => void) | undefined;
  /** After the command has ended, there is no other. */
  once?: boolean;
  /** Called when the stream or its command ends, with the reason, and with none
   * when it goes on. */
  over?: ((why: string) => void) | undefined;
}) {
  const place = useRef<HTMLDivElement>(null);
  const fit = useRef(() => {});
  const [error, setError] = useState<unknown>();
  const [lost, setLost] = useState(false);
  const [ended, setEnded] = useState(false);

  useEffect(() => {
    if (error !== undefined) props.over?.(words(error).text);
    else props.over?.(ended ? "The command has ended." : "");
  }, [error, ended]);
  useEffect(() => {
    setError(undefined);
    setEnded(false);
    const term = new Xterm({
      fontFamily:
        'ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", Menlo, monospace',
      fontSize,
      scrollback: 10_000,
      disableStdin: !props.control,
      cursorInactiveStyle: props.control ? "outline" : "none",
      theme: { background: "#101418", foreground: "#dfe6ea" },
    });
    const fitting = new FitAddon();
    term.loadAddon(fitting);
    term.open(place.current!);
    if (props.control) term.focus();

    const client = crypto.randomUUID?.() ?? String(Math.random());
    let ws: WebSocket | undefined;
    let ready = false; // the daemon has said how the output goes on
    let picture = false; // the next bytes draw the screen
    let terminal = "";
    let offset = 0;
    let skip = false; // the output that was not drawn
    let arrived = 0;
    let typed = new Uint8Array(); // input that has not arrived
    let undrawn = 0;
    let drawn = () => {};
    let window = { cols: 80, rows: 24 };

    const measure = () => {
      if (!place.current?.offsetParent) return;
      term.options.fontSize = fontSize;
      const is = fitting.proposeDimensions();
      if (is && is.cols > 1 && is.rows > 0)
        window = { cols: is.cols, rows: is.rows };
      shrink();
    };
    /** Makes a terminal that is larger than the window smaller. */
    const shrink = () => {
      const scale = Math.min(
        1,
        window.cols / term.cols,
        window.rows / term.rows,
      );
      term.options.fontSize = Math.max(
        6,
        Math.floor(fontSize * scale * 10) / 10,
      );
    };
    const send = (m: object) => ws?.send(JSON.stringify(m));
    const tell = () => {
      const before = window;
      measure();
      if (!props.control) return; // who watches does not choose the size
      if (ready && (before.cols !== window.cols || before.rows !== window.rows))
        send({ type: "size", size: window });
    };
    fit.current = tell;

    const draw = (data: Uint8Array | string, then = () => {}) => {
      undrawn += data.length;
      term.write(data, () => {
        undrawn -= data.length;
        then();
        if (undrawn === 0) drawn();
      });
    };
    const resize = (size: Message["size"]) => {
      if (!size) return;
      draw("", () => {
        if (size.cols !== term.cols || size.rows !== term.rows)
          term.resize(size.cols, size.rows);
        shrink();
      });
    };
    const type = (bytes: Uint8Array) => {
      if (!props.control) return;
      if (typed.length + bytes.length > maxTyped)
        return complain(new Error("That is too much to paste at once."));
      const all = new Uint8Array(typed.length + bytes.length);
      all.set(typed);
      all.set(bytes, typed.length);
      typed = all;
      if (ready) sendBytes(bytes);
    };
    const sendBytes = (bytes: Uint8Array) => {
      for (let i = 0; i < bytes.length; i += maxMessage)
        ws?.send(bytes.slice(i, i + maxMessage));
    };
    const acknowledge = (n: number) => {
      const more = Math.min(n - arrived, typed.length);
      if (more <= 0) return;
      typed = typed.slice(more);
      arrived += more;
    };
    const begin = (m: Message) => {
      if (terminal && m.terminal !== terminal) arrived = 0;
      else acknowledge(m.input ?? 0);
      terminal = m.terminal ?? "";
      offset = m.offset ?? 0;
      ready = true;
      skip = false;
      connection.works();
      setLost(false);
      if (typed.length) sendBytes(typed);
    };
    const hear = (m: Message) => {
      switch (m.type) {
        case "screen":
          picture = true;
          draw("\x1bc");
          resize(m.size);
          if (m.terminal === undefined) offset = m.offset ?? 0;
          else begin(m);
          break;
        case "resume":
          resize(m.size);
          begin(m);
          break;
        case "size":
          resize(m.size);
          break;
        case "input":
          acknowledge(m.input ?? 0);
          break;
        case "exit":
          draw(`\r\n\x1b[2m[the command ended with ${m.exit?.code}]\x1b[0m`);
          setEnded(true);
      }
    };
    const encoder = new TextEncoder();
    term.onData((text) => type(encoder.encode(text)));
    term.onBinary((text) =>
      type(Uint8Array.from(text, (c) => c.charCodeAt(0))),
    );

    measure();
    const connection = new Connection(props.entry, {
      connected(socket) {
        ws = socket;
        ready = picture = false;
        socket.onopen = () => {
          measure();
          const at = skip || !terminal ? {} : { terminal, offset };
          const size = props.control ? { size: window } : {};
          send({ type: "join", ...size, client, ...at });
        };
        socket.onmessage = (e: MessageEvent<string | ArrayBuffer>) => {
          if (typeof e.data === "string") return hear(JSON.parse(e.data));
          const bytes = new Uint8Array(e.data);
          if (!picture) offset += bytes.length;
          picture = false;
          draw(bytes);
          if (undrawn <= maxUndrawn || skip) return;
          skip = true;
          ready = false;
          void connection.reconnect(
            new Promise((done) => {
              drawn = done;
            }),
          );
        };
      },
      lost() {
        ready = false;
        setLost(true);
      },
      ended(e) {
        ready = false;
        setLost(false);
        setError(e);
      },
    });
    const observer = new ResizeObserver(tell);
    observer.observe(place.current!);
    return () => {
      observer.disconnect();
      connection.stop();
      term.dispose();
    };
  }, [props.entry, props.control]);

  useEffect(() => {
    if (props.shown) fit.current();
  }, [props.shown]);

  return (
    <>
      <Problem error={error} />
      {(error !== undefined || (ended && !props.once)) && props.another && (
        <div class="row" style="margin-bottom:8px">
          <Button act={props.another}>Open it again</Button>
        </div>
      )}
      <div class="term">
        <div ref={place} />
        {lost && (
          <div class="over" role="status">
            The connection is lost. Trying again…
          </div>
        )}
      </div>
    </>
  );
}
