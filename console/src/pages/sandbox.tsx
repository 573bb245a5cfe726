import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { lazy } from "../lazy";
import { call, get, run } from "../api";
import type { Event, Sandbox, Schemas } from "../api";
import { useLoad, useRecent, useSamples } from "../live";
import {
  bytes,
  Button,
  Card,
  complain,
  Empty,
  Field,
  go,
  Labels,
  may,
  parseBytes,
  Problem,
  say,
  Spark,
  State,
  Table,
  Tabs,
  Time,
  useConfirm,
  Wall,
  why,
} from "../ui";
import { EventList } from "./events";
import { Power, remove } from "./sandboxes";

const Terminal = lazy(() => import("./terminal"));
const Files = lazy(() => import("./files"));
const Desktop = lazy(() => import("./desktop"));

type Tab =
  | "terminal"
  | "files"
  | "desktop"
  | "processes"
  | "ports"
  | "network"
  | "events"
  | "limits";

export function SandboxPage({ id, tab }: { id: string; tab: string }) {
  const one = useLoad(
    () => get<Sandbox>(`v1/sandboxes/${encodeURIComponent(id)}`),
    [id],
    /^sandbox\.|^lease\./,
  );
  const confirm = useConfirm();
  const s = one.data;
  if (!s)
    return one.error ? (
      <>
        <div class="head">
          <h1>{id}</h1>
        </div>
        <Problem error={one.error} />
        <a href="#/sandboxes">All sandboxes</a>
      </>
    ) : null;
  const tabs = [
    { id: "terminal", name: "Terminal" },
    { id: "files", name: "Files" },
    { id: "desktop", name: "Desktop" },
    { id: "processes", name: "Processes" },
    { id: "ports", name: "Ports" },
    { id: "network", name: "Network" },
    { id: "events", name: "Events" },
    { id: "limits", name: "Limits and state" },
  ] as const;
  const at: Tab =
    tabs.find((t) => t.id === tab)?.id ?? (may("exec") ? "terminal" : "files");
  const path = `v1/sandboxes/${s.id}`;
  return (
    <>
      <div class="head">
        <h1>{s.name}</h1>
        <State state={s.state} reason={s.reason ?? ""} />
        <Labels of={s.labels} />
        <div class="tools">
          <Power of={s} />
          <Button
            verb="write"
            act={async () => {
              const made = await call<Schemas["Snapshot"]>(
                "POST",
                path + "/snapshots",
                { json: {} },
              );
              say(`Snapshot ${made.name} is made`);
            }}
          >
            Snapshot
          </Button>
          <Button
            verb="write"
            act={async () => {
              const { sandboxes } = await call<{ sandboxes: Sandbox[] }>(
                "POST",
                path + "/fork",
                { json: { count: 1 } },
              );
              const copy = sandboxes[0];
              if (copy) go(`/sandboxes/${copy.id}`);
            }}
          >
            Fork
          </Button>
          {s.state === "running" && (
            <Button
              verb="write"
              act={async () => {
                await call("POST", path + "/stop", { json: {} });
                say(`${s.name} is stopped`, () => {
                  call("POST", path + "/start", { json: {} }).catch(complain);
                });
              }}
            >
              Stop
            </Button>
          )}
          <Button
            kind="danger"
            verb="write"
            act={() =>
              confirm.ask({
                title: `Remove ${s.name}?`,
                text: `Its files and processes end. Snapshots of ${s.name} stay.`,
                yes: `Remove ${s.name}`,
                act: async () => {
                  await remove(s);
                  go("/sandboxes");
                },
              })
            }
          >
            Remove
          </Button>
        </div>
      </div>
      {s.reason && s.state !== "running" && (
        <div class="problem">
          {s.name} is {s.state}: {s.reason}
        </div>
      )}
      <Tabs tabs={tabs} at={at} go={(t) => go(`/sandboxes/${id}/${t}`)} />
      {at === "terminal" && <Terminal key={s.id + s.state} sandbox={s} />}
      {at === "files" && <Files key={s.id} sandbox={s} />}
      {at === "desktop" && <Desktop key={s.id} sandbox={s} />}
      {at === "processes" && <Processes sandbox={s} />}
      {at === "ports" && <Ports sandbox={s} />}
      {at === "network" && <Network sandbox={s} />}
      {at === "events" && <Events id={s.id} />}
      {at === "limits" && <Limits sandbox={s} />}
      {confirm.dialog}
    </>
  );
}

function Events({ id }: { id: string }) {
  const events = useRecent((e) => e.sandbox === id && e.type !== "attempted");
  return (
    <Card title="Events of the last hour">
      {events.length ? (
        <EventList events={events} />
      ) : (
        <Empty title="Nothing happened in the last hour" />
      )}
    </Card>
  );
}

function Processes({ sandbox: s }: { sandbox: Sandbox }) {
  const [logs, setLogs] = useState<Schemas["ProcessInfo"]>();
  const list = useLoad(
    () =>
      get<{ processes: Schemas["ProcessInfo"][] }>(
        `v1/sandboxes/${s.id}/processes`,
      ),
    [s.id, s.state],
    /^exec\.|^process\.|^sandbox\./,
  );
  const rows = [...(list.data?.processes ?? [])].reverse();
  return (
    <>
      <Card title="Commands that were started">
        {rows.length === 0 ? (
          <Empty title="No command was started" error={list.error} />
        ) : (
          <Table
            label="Commands"
            rows={rows}
            id={(p) => p.id}
            columns={[
              { head: "Id", cell: (p) => <code>{p.id}</code> },
              {
                head: "Command",
                cell: (p) => (
                  <code>{(p.args ?? []).join(" ").slice(0, 120)}</code>
                ),
              },
              {
                head: "State",
                cell: (p) =>
                  p.running ? (
                    <State state="running" />
                  ) : (
                    <span class="dim">ended with {p.exit?.code ?? "?"}</span>
                  ),
              },
              {
                head: "Started",
                cell: (p) => <Time at={p.started} />,
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (p) => (
                  <div class="row">
                    {p.background && (
                      <Button label={`Logs of ${p.id}`} act={() => setLogs(p)}>
                        Logs
                      </Button>
                    )}
                    {p.running && (
                      <Button
                        kind="danger"
                        verb="exec"
                        label={`End ${p.id}`}
                        act={async () => {
                          await call(
                            "POST",
                            `v1/sandboxes/${s.id}/processes/${p.id}/signal`,
                            { json: { signal: 15 } },
                          );
                          list.reload();
                        }}
                      >
                        End
                      </Button>
                    )}
                  </div>
                ),
              },
            ]}
          />
        )}
      </Card>
      {logs && <Logs sandbox={s} process={logs} />}
    </>
  );
}

function Logs(props: { sandbox: Sandbox; process: Schemas["ProcessInfo"] }) {
  const { sandbox: s, process: p } = props;
  const text = useLoad(async () => {
    const { request, lines } = await import("../api");
    const r = await request(
      "GET",
      `v1/sandboxes/${s.id}/processes/${p.id}/logs`,
      { query: { tail: 1000 } },
    );
    let out = "";
    const decoder = new TextDecoder();
    for await (const l of lines<{ data?: string }>(r))
      if (l.data)
        out += decoder.decode(
          Uint8Array.from(atob(l.data), (c) => c.charCodeAt(0)),
          { stream: true },
        );
    return out;
  }, [s.id, p.id]);
  return (
    <Card
      title={`Log of ${p.id}`}
      tools={<Button act={text.reload}>Load again</Button>}
    >
      <Problem error={text.error} />
      <pre>{text.data || "It wrote nothing."}</pre>
    </Card>
  );
}

/** Ports on which a server listens, from /proc inside. */
async function listening(id: string): Promise<number[]> {
  const text = await run(id, [
    "sh",
    "-c",
    "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true",
  ]);
  const found = new Set<number>();
  for (const line of text.split("\n")) {
    const [, local, , state] = line.trim().split(/\s+/);
    const port = parseInt(local?.split(":")[1] ?? "", 16);
    if (state === "0A" && port) found.add(port);
  }
  return [...found].sort((a, b) => a - b);
}

/** Opens an HTTP server of a sandbox in a tab. It has a host name of its own, and
 * gets a token for this port only, in the fragment, which is not sent. */
async function openPort(s: Sandbox, port: number) {
  const tab = window.open("about:blank", "_blank");
  try {
    const t = await call<Schemas["PortToken"]>(
      "POST",
      `v1/sandboxes/${s.id}/port-tokens`,
      { json: { ports: [port], expiresMs: 12 * 3600_000 } },
    );
    const own = /^[\d.]+$|^\[/.test(location.hostname)
      ? "localhost"
      : location.hostname;
    const host = `${port}-${s.id}.${own}${location.port && ":" + location.port}`;
    if (tab) {
      tab.opener = null;
      tab.location.href = `${location.protocol}//${host}/.atoll/open#${t.token}`;
    }
  } catch (e) {
    tab?.close();
    throw e;
  }
}

function Ports({ sandbox: s }: { sandbox: Sandbox }) {
  const open = useLoad(
    () => (may("exec") ? listening(s.id) : Promise.resolve([])),
    [s.id, s.state],
    /^exec\./,
  );
  const published = useLoad(
    () => get<{ ports: Schemas["Publication"][] }>("v1/published-ports"),
    [s.id],
    /^port\./,
  );
  const mine = (published.data?.ports ?? []).filter((p) => p.sandbox === s.id);
  const ports = [
    ...new Set([...(open.data ?? []), ...mine.map((p) => p.port)]),
  ];
  return (
    <Card title="Ports" tools={<Button act={open.reload}>Look again</Button>}>
      <Problem error={open.error} />
      {ports.length === 0 ? (
        <Empty title="No server listens">
          {may("exec")
            ? "Start one, for example in the terminal: python3 -m http.server 8000"
            : why("exec")}
        </Empty>
      ) : (
        <Table
          label="Ports"
          rows={ports}
          id={String}
          columns={[
            { head: "Port", cell: (p) => <b>{p}</b> },
            {
              head: "Published on the machine",
              cell: (port) => {
                const p = mine.find((m) => m.port === port);
                if (!p)
                  return (
                    <span class="dim">
                      no; the owner of the machine can, with{" "}
                      <code>
                        atoll port forward {s.name} {port}
                      </code>
                    </span>
                  );
                return p.error || `${p.address || "127.0.0.1"}:${p.hostPort}`;
              },
            },
            {
              head: "",
              right: true,
              cell: (port) => (
                <Button
                  verb="exec"
                  label={`Open port ${port}`}
                  act={() => openPort(s, port)}
                >
                  Open
                </Button>
              ),
            },
          ]}
        />
      )}
    </Card>
  );
}

/** The host of an event about the network, as a rule has it: without a port it
 * stands for 80 and 443. The subject is the protocol, the method of a request,
 * the address, and why. */
function hostOf(e: Event): string {
  const [, host = "", port = ""] =
    /^(?:http [A-Z]+|\w+) (\[[^\]]+\]|[^\s/:]+)(?::(\d+))?/.exec(
      e.subject ?? "",
    ) ?? [];
  const name = host.replace(/\.$/, "");
  return ["", "80", "443"].includes(port)
    ? name.replace(/[[\]]/g, "")
    : `${name}:${port}`;
}

function Network({ sandbox: s }: { sandbox: Sandbox }) {
  const rules = useLoad(
    () => get<Schemas["Network"]>(`v1/sandboxes/${s.id}/network`),
    [s.id],
    /^sandbox\.updated|^profile\./,
  );
  const events = useRecent(
    (e) => e.sandbox === s.id && e.type.startsWith("egress."),
  );
  const [allowed, setAllowed] = useState<string[]>([]); // in the profile
  const n = rules.data;
  const hosts = n?.egress ?? [];
  const own = n !== undefined && n.egress !== undefined;
  const set = async (egress: string[]) => {
    await call("PATCH", `v1/sandboxes/${s.id}`, {
      json: { network: { egress } },
    });
    rules.reload();
  };
  const denied = [
    ...new Map(
      events
        .filter((e) => e.type === "egress.denied")
        .map((e) => [hostOf(e), e]),
    ),
  ].filter(
    ([host]) => host && !hosts.includes(host) && !allowed.includes(host),
  );
  const off = own
    ? undefined
    : n?.profile
      ? !may("admin") && `It uses the profile ${n.profile}. ${why("admin")}`
      : "It was made without rules of its own.";
  const allow = async (host: string) => {
    if (own) {
      await set([...hosts, host]);
      return say(`${host} is allowed`, () => void set(hosts));
    }
    const name = n?.profile ?? "";
    const path = `v1/profiles/${encodeURIComponent(name)}`;
    const put = (rules: Schemas["Rule"][], of: Schemas["StoredProfile"]) =>
      call<Schemas["StoredProfile"]>("PUT", path, {
        json: { ...of.profile, name: undefined, rules },
        query: { ifVersion: of.version },
      });
    const old = await get<Schemas["StoredProfile"]>(path);
    const rules = old.profile.rules ?? [];
    const now = await put([{ action: "allow", hosts: [host] }, ...rules], old);
    setAllowed([...allowed, host]);
    say(`The profile ${name} allows ${host}, for all that use it`, () => {
      put(rules, now).then(
        () => setAllowed(allowed.filter((h) => h !== host)),
        complain,
      );
    });
  };
  return (
    <div class="grid">
      <Card title="What it may reach">
        <Problem error={rules.error} />
        {n?.profile ? (
          <p>
            The profile <a href={`#/egress/${n.profile}`}>{n.profile}</a>.
          </p>
        ) : n?.inline ? (
          <pre>{JSON.stringify(n.inline, null, 2)}</pre>
        ) : own ? (
          hosts.length ? (
            hosts.map((h) => (
              <div class="row" key={h}>
                <code>{h}</code>
                <Button
                  verb="write"
                  label={`Deny ${h}`}
                  act={async () => {
                    await set(hosts.filter((x) => x !== h));
                    say(`${h} is denied`, () => void set(hosts));
                  }}
                >
                  Deny
                </Button>
              </div>
            ))
          ) : (
            <p class="dim">It has a network on which every host is denied.</p>
          )
        ) : (
          <p class="dim">
            It has no network. A sandbox gets one when it is made.
          </p>
        )}
      </Card>
      <Card title="Refused">
        {denied.length === 0 ? (
          <Empty title="Nothing was refused" />
        ) : (
          denied.map(([host, e]) => (
            <div class="row" key={host}>
              <State state="denied" />
              <code>{host}</code>
              <Time at={e.time} />
              <Button
                verb="write"
                off={off}
                label={`Allow this host: ${host}`}
                act={() => allow(host)}
              >
                Allow this host
              </Button>
            </div>
          ))
        )}
      </Card>
      <Card title="Requests" class="all">
        {events.length ? (
          <EventList events={events.slice(-100)} />
        ) : (
          <Empty title="It sent nothing in the last hour" />
        )}
      </Card>
    </div>
  );
}

function Limits({ sandbox: s }: { sandbox: Sandbox }) {
  const r = s.resources ?? {};
  const [memory, setMemory] = useState(r.memory ? bytes(r.memory) : "");
  const [cpus, setCpus] = useState(r.cpus ? String(r.cpus) : "");
  const [labels, setLabels] = useState(
    Object.entries(s.labels ?? {})
      .map(([k, v]) => `${k}=${v}`)
      .join("\n"),
  );
  const samples = useSamples(
    async () => ({
      at: Date.now(),
      u: await get<Schemas["SandboxUsage"]>(`v1/sandboxes/${s.id}/usage`),
    }),
    2000,
    [s.id, s.state],
  );
  const last = samples.at(-1)?.u;
  const cpu = samples.slice(1).map((b, i) => {
    const a = samples[i]!;
    return Math.max(b.u.cpuMs - a.u.cpuMs, 0) / Math.max(b.at - a.at, 1);
  });
  const size = (n: number | undefined) => (n && n > 0 ? bytes(n) : "");
  const count = (n: number | undefined) => (n && n > 0 ? String(n) : "");
  const limits = [
    ["memory", "Memory", size(r.memory)],
    ["cpus", "Processors", count(r.cpus)],
    ["disk", "Disk", size(r.disk)],
    ["pids", "Processes", count(r.pids)],
  ] as const;
  const save = async () => {
    const size = memory ? parseBytes(memory) : undefined;
    const wanted: Record<string, string> = {};
    for (const l of labels.split("\n").filter(Boolean)) {
      const at = l.indexOf("=");
      wanted[at < 0 ? l : l.slice(0, at)] = at < 0 ? "" : l.slice(at + 1);
    }
    const changes: Record<string, string | null> = { ...wanted };
    for (const k of Object.keys(s.labels ?? {}))
      if (!(k in wanted)) changes[k] = null;
    const limits = {
      ...(size && size !== r.memory && { memory: size }),
      ...(cpus && Number(cpus) !== r.cpus && { cpus: Number(cpus) }),
    };
    await call("PATCH", `v1/sandboxes/${s.id}`, {
      json: {
        labels: changes,
        ...(Object.keys(limits).length && { resources: limits }),
      },
    });
    say(`${s.name} is changed`);
  };
  return (
    <div class="grid">
      <Card title="Use">
        <Spark
          label="Memory"
          values={samples.map((x) => x.u.memory)}
          max={r.memory}
          text={
            r.memory
              ? `${bytes(last?.memory)} of ${bytes(r.memory)}`
              : `${bytes(last?.memory)}, no limit`
          }
        />
        <Spark
          label="Processors"
          values={cpu}
          max={r.cpus ?? 1}
          text={`${(cpu.at(-1) ?? 0).toFixed(2)}${r.cpus ? ` of ${r.cpus}` : ", no limit"}`}
        />
        <dl>
          <dt>Disk</dt>
          <dd>{bytes(last?.disk)}</dd>
          <dt>Processes</dt>
          <dd>{last && last.pids >= 0 ? last.pids : "–"}</dd>
        </dl>
      </Card>
      <Card title="Limits">
        <Field label="Memory">
          <input
            value={memory}
            onInput={(e) => setMemory(e.currentTarget.value)}
          />
        </Field>
        <Field label="Processors">
          <input value={cpus} onInput={(e) => setCpus(e.currentTarget.value)} />
        </Field>
        <Field label="Labels" hint="KEY=VALUE, one a line">
          <textarea
            value={labels}
            style="min-height:72px"
            onInput={(e) => setLabels(e.currentTarget.value)}
          />
        </Field>
        <Button kind="primary" verb="write" act={save}>
          Save
        </Button>
        <h3 style="margin-top:16px">What holds</h3>
        <dl>
          {limits.map(([name, what, value]) => {
            const loose = s.limits?.[name];
            return (
              <Fragment key={name}>
                <dt>{what}</dt>
                <dd>
                  {!value ? (
                    <span class="dim">no limit</span>
                  ) : loose ? (
                    <>
                      <State
                        state="warning"
                        text={`${value} is not enforced`}
                      />{" "}
                      <span class="dim">{loose.why}</span>
                    </>
                  ) : (
                    value
                  )}
                </dd>
              </Fragment>
            );
          })}
        </dl>
      </Card>
      <Card title="Sandbox">
        <dl>
          <dt>Id</dt>
          <dd>
            <code>{s.id}</code>
          </dd>
          <dt>Image</dt>
          <dd>{s.image}</dd>
          <dt>Provider</dt>
          <dd>{s.provider ?? "–"}</dd>
          <dt>Isolation</dt>
          <dd>
            <Wall of={s.isolation} />
          </dd>
          <dt>Created</dt>
          <dd>
            <Time at={s.created} />
          </dd>
          <dt>Ends</dt>
          <dd>{s.expires ? <Time at={s.expires} /> : "never by itself"}</dd>
          {s.origin && (
            <>
              <dt>From</dt>
              <dd>{s.origin}</dd>
            </>
          )}
          {s.node && (
            <>
              <dt>Node</dt>
              <dd>{s.node}</dd>
            </>
          )}
        </dl>
      </Card>
    </div>
  );
}
