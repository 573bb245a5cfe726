import { useMemo, useState } from "preact/hooks";
import { ApiError, get, socket } from "../api";
import type { Sandbox, Schemas } from "../api";
import { useLoad } from "../live";
import { entry } from "../stream";
import { Button, Control, may, Problem, why } from "../ui";
import { Record } from "./record";
import Screen from "./screen";

type Process = Schemas["ProcessInfo"];

/** The last arguments of the login shell that all viewers share, which the
 * daemon makes, and of those that this page makes. */
const shared = "atoll-terminal";
const own = "atoll-shell";
const shell =
  '[ -d /workspace ] && cd /workspace; exec "$(command -v bash || echo sh)" -l';

/** Starts a shell that stays when the page goes. */
function newShell(id: string): Promise<string> {
  const ws = socket(`v1/sandboxes/${id}/exec`);
  return new Promise((done, failed) => {
    ws.onopen = () =>
      ws.send(
        JSON.stringify({
          type: "start",
          command: {
            args: ["sh", "-c", shell, own],
            tty: { cols: 80, rows: 24 },
            env: { TERM: "xterm-256color" },
            stdin: true,
            background: true,
          },
        }),
      );
    ws.onmessage = (e: MessageEvent<string | ArrayBuffer>) => {
      if (typeof e.data !== "string") return;
      const m = JSON.parse(e.data) as {
        type: string;
        process?: { id: string };
        error?: Schemas["Problem"];
      };
      if (m.type === "started" && m.process) {
        done(m.process.id);
        ws.close(4000); // not 1000, which would end the shell
      } else if (m.type === "error") {
        const p = m.error;
        failed(
          new ApiError(0, p?.code ?? "", p?.detail ?? p?.title ?? "", p?.hint),
        );
        ws.close(4000);
      }
    };
    ws.onclose = () => failed(new Error("The connection is lost."));
  });
}

/** The terminals of a sandbox: the login shell that all viewers share, and
 * commands on a terminal that run in the background. */
export default function Terminal({ sandbox: s }: { sandbox: Sandbox }) {
  const [at, setAt] = useState("");
  const [watching, setWatching] = useState(!may("exec"));
  const [opened, setOpened] = useState<string[]>([""]);
  const [over, setOver] = useState<Record<string, string>>({});
  const processes = useLoad(
    () =>
      get<{ processes: Process[] }>(`v1/sandboxes/${s.id}/processes`).then(
        (r) => r.processes.filter((p) => p.running && p.tty && p.background),
      ),
    [s.id, s.state],
    /^exec\.|^process\.|^recording\.start|^stream\.opened/,
  );
  const viewers = useLoad(
    () => get<{ streams: Schemas["Stream"][] }>(`v1/sandboxes/${s.id}/streams`),
    [s.id],
    /^stream\.(opened|closed|revoked)/,
  );
  if (s.state !== "running")
    return <Problem error={new Error(`${s.name} is ${s.state}.`)} />;
  const show = (id: string) => {
    setAt(id);
    if (!opened.includes(id)) setOpened([...opened, id]);
  };
  const isShared = (p: Process) => (p.args ?? []).at(-1) === shared;
  const all = processes.data ?? [];
  const others = all.filter((p) => !isShared(p));
  const process = at || all.find(isShared)?.id;
  const tabs = [
    { id: "", name: "Shared shell" },
    ...others.map((p) => ({ id: p.id, name: title(p) })),
    // A command that has ended stays until another is looked at.
    ...(at && !others.some((p) => p.id === at) ? [{ id: at, name: at }] : []),
  ];
  const count = (viewers.data?.streams ?? [])
    .filter((v) => v.process && v.process === process)
    .reduce((n, v) => n + v.viewers, 0);
  return (
    <>
      <div class="row bar">
        {tabs.map((t) => (
          <Button
            key={t.id}
            kind={t.id === at ? "primary" : "plain"}
            act={() => show(t.id)}
          >
            {t.name}
          </Button>
        ))}
        <Button
          label="New terminal"
          verb="exec"
          act={async () => {
            const id = await newShell(s.id);
            processes.reload();
            show(id);
          }}
        >
          +
        </Button>
        <div class="row end">
          {count > 1 && (
            <span class="dim" role="status">
              {count} viewers
            </span>
          )}
          <Record sandbox={s} what={process ? { process } : {}} />
          <Control
            verb="exec"
            watching={watching}
            ended={over[at] ?? ""}
            act={() => setWatching(!watching)}
          />
        </div>
      </div>
      {!may("exec") && <p class="dim">You watch. {why("exec")}</p>}
      {opened
        .filter((id) => id === at || tabs.some((t) => t.id === id))
        .map((id) => (
          <div key={id} style={id === at ? "" : "display:none"}>
            <One
              id={s.id}
              process={id}
              shown={id === at}
              control={!watching}
              over={(why) => setOver((all) => ({ ...all, [id]: why }))}
            />
          </div>
        ))}
    </>
  );
}

function title(p: Process): string {
  const args = p.args ?? [];
  if (args.at(-1) === own) return `Shell ${p.id}`;
  const text = args.join(" ");
  return text.length > 24 ? text.slice(0, 23) + "…" : text;
}

function One(props: {
  id: string;
  process: string;
  shown: boolean;
  control: boolean;
  over: (why: string) => void;
}) {
  const [turn, setTurn] = useState(0);
  const way = useMemo(
    () =>
      entry(props.id, {
        kind: "terminal",
        mode: props.control ? "control" : "view",
        ...(props.process ? { process: props.process } : {}),
      }),
    [props.id, props.process, props.control, turn],
  );
  return (
    <Screen
      entry={way}
      control={props.control}
      shown={props.shown}
      over={props.over}
      once={props.process !== ""}
      another={() => setTurn(turn + 1)}
    />
  );
}
