import { get } from "../api";
import type { Event, Sandbox, Schemas } from "../api";
import { useLoad, useRecent, useSamples } from "../live";
import { bytes, Card, Empty, go, Spark, State, Table, Time } from "../ui";
import { EventList, isLook } from "./events";
import { NewSandbox } from "./sandboxes";
import { Button } from "../ui";
import { useState } from "preact/hooks";

type Usage = Schemas["SandboxUsage"];
type Sample = { at: number; usage: Map<string, Usage> };

export function Overview() {
  const [creating, setCreating] = useState(false);
  const list = useLoad(
    () => get<{ sandboxes: Sandbox[] }>("v1/sandboxes", { limit: 200 }),
    [],
    /^sandbox\./,
  );
  const tenant = useLoad(
    () => get<Schemas["Tenant"]>("v1/tenant"),
    [],
    /^(sandbox|snapshot)\./,
  );
  const all = list.data?.sandboxes;
  const running = (all ?? []).filter((s) => s.state === "running");
  const ids = running
    .slice(0, 40)
    .map((s) => s.id)
    .join(" ");
  const samples = useSamples<Sample>(
    async () => {
      const usage = new Map<string, Usage>();
      await Promise.all(
        ids
          .split(" ")
          .filter(Boolean)
          .map(async (id) => {
            const u = await get<Usage>(`v1/sandboxes/${id}/usage`).catch(
              () => undefined,
            );
            if (u) usage.set(id, u);
          }),
      );
      return { at: Date.now(), usage };
    },
    3000,
    [ids],
  );
  const memory = samples.map((s) =>
    [...s.usage.values()].reduce((n, u) => n + Math.max(u.memory, 0), 0),
  );
  const cpu = samples.slice(1).map((s, i) => rate(samples[i]!, s));
  const events = useRecent((e) => !isLook(e));

  return (
    <>
      <div class="head">
        <h1>Overview</h1>
        <div class="tools">
          <Button kind="primary" verb="write" act={() => setCreating(true)}>
            New sandbox
          </Button>
        </div>
      </div>
      <div class="figures">
        <Card>
          <span class="dim">Running</span>
          <b>{all ? running.length : "–"}</b>
          <span class="dim">
            {all ? `${all.length - running.length} others` : ""}
          </span>
        </Card>
        <Card>
          <Spark
            label="Memory"
            values={memory}
            text={bytes(memory.at(-1) ?? 0)}
          />
        </Card>
        <Card>
          <Spark
            label="Processors"
            values={cpu}
            max={1}
            text={(cpu.at(-1) ?? 0).toFixed(2)}
          />
        </Card>
        <Card>
          <span class="dim">Snapshots</span>
          <b>{tenant.data?.usage.snapshots ?? "–"}</b>
          <span class="dim">{bytes(tenant.data?.usage.snapshotBytes)}</span>
        </Card>
      </div>
      <Decisions sandboxes={all ?? []} events={events} samples={samples} />
      <div class="grid">
        <Card title="Running now">
          {running.length === 0 ? (
            <Empty title="Nothing runs" error={list.error}>
              Make a sandbox here, or with{" "}
              <code>atoll create --image base demo</code>.
            </Empty>
          ) : (
            <Table
              label="Running sandboxes"
              rows={running}
              id={(s) => s.id}
              open={(s) => go(`/sandboxes/${s.id}`)}
              columns={[
                {
                  head: "Name",
                  cell: (s) => <a href={`#/sandboxes/${s.id}`}>{s.name}</a>,
                },
                { head: "Image", cell: (s) => s.image, wide: true },
                {
                  head: "Memory",
                  right: true,
                  cell: (s) => bytes(samples.at(-1)?.usage.get(s.id)?.memory),
                },
                {
                  head: "Created",
                  right: true,
                  cell: (s) => <Time at={s.created} />,
                },
              ]}
            />
          )}
        </Card>
        <Card title="Recent events" tools={<a href="#/activity">All</a>}>
          {events.length === 0 ? (
            <Empty title="Nothing happened in the last hour" />
          ) : (
            <EventList events={events.slice(-14)} named />
          )}
        </Card>
      </div>
      {creating && <NewSandbox close={() => setCreating(false)} />}
    </>
  );
}

/** Processors in use between two samples. */
function rate(a: Sample, b: Sample): number {
  let ms = 0;
  for (const [id, u] of b.usage) {
    const before = a.usage.get(id);
    if (before) ms += Math.max(u.cpuMs - before.cpuMs, 0);
  }
  return ms / Math.max(b.at - a.at, 1);
}

/** What a person should look at: refused hosts, failures, and limits. */
function Decisions(props: {
  sandboxes: Sandbox[];
  events: Event[];
  samples: Sample[];
}) {
  const notes: { key: string; state: string; text: string; to: string }[] = [];
  for (const s of props.sandboxes) {
    if (s.state === "failed" || s.state === "lost")
      notes.push({
        key: s.id,
        state: s.state,
        text: `${s.name} is ${s.state}${s.reason ? `: ${s.reason}` : ""}`,
        to: `/sandboxes/${s.id}`,
      });
    const used = props.samples.at(-1)?.usage.get(s.id)?.memory ?? 0;
    const limit = s.resources?.memory ?? 0;
    if (limit > 0 && used > 0.9 * limit)
      notes.push({
        key: s.id + "memory",
        state: "warning",
        text: `${s.name} uses ${bytes(used)} of ${bytes(limit)} memory`,
        to: `/sandboxes/${s.id}/limits`,
      });
  }
  const refused = new Map<string, Event>();
  for (const e of props.events)
    if (e.type === "egress.denied") refused.set(`${e.sandbox} ${e.subject}`, e);
  for (const e of [...refused.values()].slice(-5))
    if (props.sandboxes.some((s) => s.id === e.sandbox))
      notes.push({
        key: `${e.seq}`,
        state: "denied",
        text: `${e.name ?? e.sandbox} was refused ${e.subject}`,
        to: `/sandboxes/${e.sandbox}/network`,
      });
  if (notes.length === 0) return null;
  return (
    <Card title="Needs a decision">
      {notes.map((n) => (
        <div key={n.key}>
          <a href={"#" + n.to}>
            <State state={n.state} />
          </a>{" "}
          {n.text}
        </div>
      ))}
    </Card>
  );
}
