import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Sandbox, Schemas } from "../api";
import { useLoad } from "../live";
import {
  bytes,
  Button,
  Card,
  Empty,
  Labels,
  say,
  State,
  Time,
  useConfirm,
} from "../ui";
import { allSandboxes, NewSandbox } from "./sandboxes";

type Snapshot = Schemas["Snapshot"];

async function allSnapshots(): Promise<Snapshot[]> {
  const all: Snapshot[] = [];
  let cursor = "";
  do {
    const page = await get<{ snapshots: Snapshot[]; next?: string }>(
      "v1/snapshots",
      { limit: 500, cursor },
    );
    all.push(...page.snapshots);
    cursor = page.next ?? "";
  } while (cursor && all.length < 5000);
  return all;
}

/** Snapshots and the sandboxes that began from them, as a tree. */
export function Snapshots() {
  const [from, setFrom] = useState("");
  const list = useLoad(
    async () => ({
      snapshots: await allSnapshots(),
      // Only single sandboxes name the snapshot that they began from.
      sandboxes: await Promise.all(
        (await allSandboxes())
          .slice(0, 200)
          .map((s) => get<Sandbox>(`v1/sandboxes/${s.id}`).catch(() => s)),
      ),
    }),
    [],
    /^snapshot\.|^sandbox\./,
  );
  const confirm = useConfirm();
  const { snapshots = [], sandboxes = [] } = list.data ?? {};
  const known = new Set(sandboxes.map((s) => s.id));

  const node = (s: Snapshot) => (
    <li key={s.id}>
      <div class="node">
        <b>{s.name}</b>
        <span class="dim">
          {s.image} · {bytes(s.size)} · {s.memory ? "with memory" : "files"} ·{" "}
          <Time at={s.created} />
        </span>
        {s.saved && <span class="chip">saved</span>}
        {s.problem && <span class="chip">{s.problem}</span>}
        <Labels of={s.labels} />
        <Button
          verb="write"
          label={`New sandbox from ${s.name}`}
          act={() => setFrom(s.name)}
        >
          New sandbox
        </Button>
        <Button
          kind="danger"
          verb="write"
          label={`Remove snapshot ${s.name}`}
          act={() =>
            confirm.ask({
              title: `Remove the snapshot ${s.name}?`,
              text: "Sandboxes that began from it stay.",
              yes: `Remove ${s.name}`,
              act: async () => {
                await call("DELETE", `v1/snapshots/${s.id}`);
                say(`${s.name} is removed`);
              },
            })
          }
        >
          Remove
        </Button>
      </div>
      <Children of={s} />
    </li>
  );
  const began = (s: Sandbox, from: Snapshot) =>
    s.origin === from.id || s.origin === from.name;
  const Children = ({ of }: { of: Snapshot | Sandbox }) => {
    const snaps = snapshots.filter((s) => s.parent === of.id);
    const boxes = "parent" in of ? sandboxes.filter((s) => began(s, of)) : [];
    if (!snaps.length && !boxes.length) return null;
    return (
      <ul>
        {snaps.map(node)}
        {boxes.map(leaf)}
      </ul>
    );
  };
  const leaf = (s: Sandbox) => (
    <li key={s.id}>
      <div class="node">
        <a href={`#/sandboxes/${s.id}`}>{s.name}</a>
        <State state={s.state} />
      </div>
      <Children of={s} />
    </li>
  );
  // Snapshots are below the sandbox that they were made of, if it still exists,
  // and sandboxes below the snapshot that they began from.
  const lost = snapshots.filter((s) => !known.has(s.parent));
  const roots = sandboxes.filter(
    (s) =>
      !snapshots.some((from) => began(s, from)) &&
      snapshots.some((of) => of.parent === s.id),
  );
  return (
    <>
      <div class="head">
        <h1>Snapshots</h1>
      </div>
      <Card>
        {snapshots.length === 0 ? (
          <Empty title="There are no snapshots" error={list.error}>
            Make one on the page of a sandbox, or with{" "}
            <code>atoll snapshot create demo</code>.
          </Empty>
        ) : (
          <ul class="tree">
            {roots.map(leaf)}
            {lost.map(node)}
          </ul>
        )}
      </Card>
      {from && <NewSandbox snapshot={from} close={() => setFrom("")} />}
      {confirm.dialog}
    </>
  );
}
