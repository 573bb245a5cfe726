import { FitAddon } from "@xterm/addon-fit";
import { Terminal as Xterm } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "preact/hooks";
import { socket } from "../api";
import type { Sandbox } from "../api";
import { Button, Problem } from "../ui";

/** How long a shell waits for a page that lost its connection. */
const hold = 10 * 60_000;
const shell = 'exec "$(command -v bash || echo sh)" -l';

export default function Terminal({ sandbox: s }: { sandbox: Sandbox }) {
  const [tabs, setTabs] = useState([1]);
  const [at, setAt] = useState(1);
  if (s.state !== "running")
    return <Problem error={new Error(`${s.name} is ${s.state}.`)} />;
  return (
    <>
      <div class="row" style="margin-bottom:8px">
        {tabs.map((t) => (
          <Button
            key={t}
            kind={t === at ? "primary" : "plain"}
            act={() => setAt(t)}
          >
            Terminal {t}
          </Button>
        ))}
        <Button
          label="New terminal"
          act={() => {
            const t = Math.max(...tabs) + 1;
            setTabs([...tabs, t]);
            setAt(t);
          }}
        >
          +
        </Button>
      </div>
      {tabs.map((t) => (
        <div key={t} style={t === at ? "" : "display:none"}>
          <One id={s.id} n={t} shown={t === at} />
        </div>
      ))}
    </>
  );
}

interface Message {
  type: string;
  process?: { id: string };
  at?: { stdout: number };
  error?: { detail?: string; title?: string; hint?: string };
  exit?: { code: number };
}

/** One shell. A page that is loaded again goes on with the shells that it had,
 * as far as their output is kept. */
function One(props: { id: string; n: number; shown: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  const fitted = useRef<FitAddon>(undefined);
  const [error, setError] = useState<unknown>();
  const [ended, setEnded] = useState(false);
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    const memory = `atoll.shell.${props.id}.${props.n}`;
    const term = new Xterm({
      fontFamily:
        'ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", Menlo, monospace',
      fontSize: 13,
      scrollback: 10_000,
      screenReaderMode: false,
      theme: { background: "#101418", foreground: "#dfe6ea" },
    });
    const fit = new FitAddon();
    fitted.current = fit;
    term.loadAddon(fit);
    term.open(place.current!);
    fit.fit();
    term.focus();

    let process = sessionStorage.getItem(memory) ?? "";
    let received = 0;
    let ws: WebSocket | undefined;
    let over = false;
    let tries = 0;
    let retry = 0;
    // Sent bytes that the sandbox has not acknowledged; its window bounds them.
    let unacked = 0;
    const waiting: Uint8Array[] = [];
    const encoder = new TextEncoder();

    const send = (m: object) => {
      if (ws?.readyState === WebSocket.OPEN) ws.send(JSON.stringify(m));
    };
    const flush = () => {
      while (waiting[0] && ws?.readyState === WebSocket.OPEN) {
        const part = waiting[0];
        if (unacked + part.length > 262_144) return;
        const frame = new Uint8Array(part.length + 1);
        frame.set(part, 1); // channel 0 is standard input
        ws.send(frame);
        unacked += part.length;
        waiting.shift();
      }
    };
    const type = (text: string) => {
      const all = encoder.encode(text);
      for (let i = 0; i < all.length; i += 32_768)
        waiting.push(all.slice(i, i + 32_768));
      flush();
    };
    const connect = () => {
      const attach = process !== "";
      ws = attach
        ? socket(
            `v1/sandboxes/${props.id}/processes/${process}/attach`,
            received ? { stdout: received } : { skip: true },
          )
        : socket(`v1/sandboxes/${props.id}/exec`);
      const mine = ws;
      unacked = 0;
      mine.onopen = () => {
        if (!attach)
          send({
            type: "start",
            command: {
              args: ["sh", "-c", shell],
              tty: { cols: term.cols, rows: term.rows },
              env: { TERM: "xterm-256color" },
              stdin: true,
              holdMs: hold,
            },
          });
      };
      mine.onmessage = (e: MessageEvent<string | ArrayBuffer>) => {
        if (typeof e.data === "string") return hear(JSON.parse(e.data));
        const data = new Uint8Array(e.data);
        const rest = data.subarray(1);
        received += rest.length;
        term.write(rest, () =>
          send({ type: "ack", channel: data[0], n: rest.length }),
        );
      };
      mine.onclose = () => {
        if (over || mine !== ws) return;
        if (tries++ > 30) return setError(new Error("The connection is lost."));
        retry = window.setTimeout(connect, Math.min(250 * tries, 3000));
      };
    };
    const hear = (m: Message) => {
      switch (m.type) {
        case "started":
          tries = 0;
          setError(undefined);
          process = m.process?.id ?? "";
          sessionStorage.setItem(memory, process);
          if (m.at) received = m.at.stdout;
          send({ type: "resize", size: { cols: term.cols, rows: term.rows } });
          flush();
          break;
        case "ack":
          unacked = Math.max(0, unacked - (m as { n?: number }).n!);
          flush();
          break;
        case "exit":
          over = true;
          sessionStorage.removeItem(memory);
          term.write(
            `\r\n\x1b[2m[the shell ended with ${m.exit?.code}]\x1b[0m`,
          );
          setEnded(true);
          break;
        case "error":
          if (process && tries === 0) {
            // The shell of an earlier visit has ended.
            process = "";
            received = 0;
            sessionStorage.removeItem(memory);
            tries++;
            return;
          }
          over = true;
          setError(
            new Error(
              [m.error?.detail ?? m.error?.title, m.error?.hint]
                .filter(Boolean)
                .join(". "),
            ),
          );
      }
    };
    term.onData(type);
    term.onResize((size) =>
      send({ type: "resize", size: { cols: size.cols, rows: size.rows } }),
    );
    const observer = new ResizeObserver(() => {
      if (place.current?.offsetParent) fit.fit();
    });
    observer.observe(place.current!);
    connect();
    return () => {
      over = true;
      clearTimeout(retry);
      observer.disconnect();
      ws?.close(4000); // not 1000, which would end the shell
      term.dispose();
    };
  }, [props.id, props.n, turn]);

  useEffect(() => {
    if (props.shown) fitted.current?.fit();
  }, [props.shown]);

  return (
    <>
      <Problem error={error} />
      {ended && (
        <div class="row" style="margin-bottom:8px">
          <Button
            act={() => {
              setEnded(false);
              setTurn(turn + 1);
            }}
          >
            Start another shell
          </Button>
        </div>
      )}
      <div class="term" ref={place} />
    </>
  );
}
