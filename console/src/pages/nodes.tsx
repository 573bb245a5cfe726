import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, call, get } from "../api";
import type { Schemas } from "../api";
import { useLoad, useSamples } from "../live";
import {
  bytes,
  Button,
  Card,
  complain,
  Dialog,
  Empty,
  go,
  Problem,
  say,
  State,
  Table,
  Time,
  useConfirm,
  Wall,
} from "../ui";
import { allSandboxes } from "./sandboxes";

type Node = Schemas["Node"];

const changes = /^node\.|^sandbox\.|^lease\.|^route\./;
const listNodes = () =>
  get<{ nodes: Node[] }>("v1/nodes").then((r) => r.nodes ?? []);
const path = (n: Node) => `v1/nodes/${encodeURIComponent(n.name)}`;

const boxes = (n: number) => (n === 1 ? "1 sandbox" : `${n} sandboxes`);

/** Daemons of other machines on which this one makes sandboxes. */
export function Nodes({ at }: { at: string | undefined }) {
  const list = useLoad(listNodes, [], changes);
  const none = list.error instanceof ApiError && list.error.status === 404;
  // Health, memory and sandboxes of other tenants change without an event.
  useSamples(
    async () => {
      if (!none) list.reload();
    },
    3000,
    [none],
  );
  const [draining, setDraining] = useState<string>();
  const confirm = useConfirm();
  const rows = list.data ?? [];
  const one = rows.find((n) => n.name === at);
  const moved = rows.find((n) => n.name === draining);
  return (
    <>
      <div class="head">
        <h1>Nodes</h1>
      </div>
      <p class="dim">
        Daemons on other machines, on which this one makes sandboxes. A sandbox
        without a provider gets the node that suits it best.
      </p>
      <Card>
        {rows.length === 0 ? (
          <Empty
            title="This daemon has no nodes"
            error={none ? undefined : list.error}
          >
            Sandboxes are made on this machine. To add others, start a daemon on
            each, make a key there with <code>atoll key create</code>, and start
            this one with <code>atoll up --node URL --node-key-file FILE</code>.
          </Empty>
        ) : (
          <Table
            label="Nodes"
            rows={rows}
            id={(n) => n.name}
            open={(n) => go(`/nodes/${n.name}`)}
            columns={[
              {
                head: "Name",
                cell: (n) => (
                  <>
                    <a href={`#/nodes/${n.name}`}>{n.name}</a>
                    <div class="dim any">{n.url}</div>
                  </>
                ),
              },
              {
                head: "State",
                cell: (n) => <State state={n.state} reason={n.reason ?? ""} />,
              },
              { head: "Sandboxes", cell: (n) => n.placed },
              {
                head: "Free memory",
                cell: (n) => bytes(n.load?.memoryFree),
                wide: true,
              },
              {
                head: "Isolation",
                cell: (n) => n.load?.isolation ?? "–",
                wide: true,
              },
              {
                head: "Images",
                cell: (n) => n.load?.images?.length ?? "–",
                wide: true,
              },
            ]}
          />
        )}
      </Card>
      {one ? (
        <One
          key={one.name}
          of={one}
          tools={
            <Actions
              of={one}
              all={rows}
              drain={() => setDraining(one.name)}
              changed={list.reload}
              ask={confirm.ask}
            />
          }
        />
      ) : (
        at &&
        list.data && <Problem error={new Error(`There is no node ${at}.`)} />
      )}
      {moved && (
        <Drain
          key={moved.name}
          of={moved}
          changed={list.reload}
          close={() => setDraining(undefined)}
        />
      )}
      {confirm.dialog}
    </>
  );
}

/** Why a node cannot be drained; empty if it can. */
function stays(n: Node): string {
  if (n.state === "unreachable")
    return `${n.name} does not answer, so nothing can be moved from it.`;
  if (n.state === "draining") return `${n.name} is being drained.`;
  if (n.placed === 0) return `${n.name} has no sandboxes. Cordon it.`;
  return "";
}

function Actions(props: {
  of: Node;
  all: Node[];
  drain: () => void;
  changed: () => void;
  ask: ReturnType<typeof useConfirm>["ask"];
}) {
  const { of: n, all, changed } = props;
  const cordon = (cordoned: boolean) => async () => {
    await call("PATCH", path(n), { json: { cordoned } });
    changed();
    say(
      cordoned
        ? `${n.name} gets no new sandboxes`
        : `${n.name} gets new sandboxes again`,
      () => {
        call("PATCH", path(n), { json: { cordoned: !cordoned } })
          .then(changed)
          .catch(complain);
      },
    );
  };
  const remove = (lost: boolean) => async () => {
    await call("DELETE", path(n), { query: lost ? { lost } : {} });
    changed();
    say(`${n.name} is removed`);
  };
  if (n.state === "removed")
    return (
      <Button verb="admin" label={`Take back ${n.name}`} act={cordon(false)}>
        Take back
      </Button>
    );
  const lost = n.state === "unreachable" && n.placed > 0;
  const others = all.some((o) => o !== n && o.state === "ready");
  return (
    <>
      {n.state === "cordoned" || n.state === "draining" ? (
        <Button verb="admin" label={`Uncordon ${n.name}`} act={cordon(false)}>
          Uncordon
        </Button>
      ) : (
        <Button verb="admin" label={`Cordon ${n.name}`} act={cordon(true)}>
          Cordon
        </Button>
      )}
      <Button
        verb="admin"
        label={`Drain ${n.name}`}
        off={stays(n) || (!others && "No other node is ready.")}
        act={props.drain}
      >
        Drain
      </Button>
      {lost ? (
        <Button
          kind="danger"
          verb="admin"
          label={`Give up ${n.name}`}
          act={() =>
            props.ask({
              title: `Give up ${n.name}?`,
              text: `Only if ${n.name} never comes back: its ${boxes(n.placed)} are recorded as gone. Their sessions get new ones elsewhere, with what was saved of them. What was not saved is lost.`,
              yes: `Give up ${n.name}`,
              act: remove(true),
            })
          }
        >
          Give up
        </Button>
      ) : (
        <Button
          kind="danger"
          verb="admin"
          label={`Remove ${n.name}`}
          off={
            n.placed > 0 && `${n.name} has ${boxes(n.placed)}. Drain it first.`
          }
          act={() =>
            props.ask({
              title: `Remove ${n.name}?`,
              text: `No sandbox is made on ${n.name} any more. Afterwards, leave it out when you start the daemon.`,
              yes: `Remove ${n.name}`,
              act: remove(false),
            })
          }
        >
          Remove
        </Button>
      )}
    </>
  );
}

function One(props: { of: Node; tools: ComponentChildren }) {
  const { of: n, tools } = props;
  const list = useLoad(allSandboxes, [n.name], changes);
  const mine = (list.data ?? []).filter((s) => s.provider === n.provider);
  const l = n.load;
  const images = l?.images ?? [];
  return (
    <div class="grid">
      <Card title={n.name} tools={tools}>
        <dl>
          <dt>State</dt>
          <dd>
            <State state={n.state} />
            {n.reason && !n.reason.includes(n.state) && (
              <div class="dim">{n.reason}</div>
            )}
          </dd>
          <dt>Address</dt>
          <dd>
            <code>{n.url}</code>
          </dd>
          <dt>Provider</dt>
          <dd>
            <code>{n.provider}</code>
          </dd>
          <dt>Answered</dt>
          <dd>
            <Time at={n.seen} />
          </dd>
          {n.removed && (
            <>
              <dt>{n.lost ? "Given up" : "Removed"}</dt>
              <dd>
                <Time at={n.removed} />
              </dd>
            </>
          )}
          {l && (
            <>
              <dt>Memory</dt>
              <dd>
                {bytes(l.memoryFree)} free of {bytes(l.memoryTotal)};{" "}
                {bytes(l.memoryReserved)} reserved for sandboxes
              </dd>
              <dt>Isolation</dt>
              <dd>
                <Wall of={l.isolation} />
              </dd>
              <dt>Images</dt>
              <dd>
                {images.length === 0 ? (
                  <span class="dim">none</span>
                ) : (
                  images.map((i) => (
                    <span class="chip" key={i} title={i}>
                      {i}
                    </span>
                  ))
                )}
              </dd>
            </>
          )}
        </dl>
      </Card>
      <Card title={`Its sandboxes: ${n.placed}`}>
        <Problem error={list.error} />
        {mine.map((s) => (
          <div class="row" key={s.id}>
            <State state={s.state} reason={s.reason ?? ""} />
            <a href={`#/sandboxes/${s.id}`}>{s.name}</a>
          </div>
        ))}
        {list.data && mine.length < n.placed && (
          <p class="dim">{boxes(n.placed - mine.length)} of other tenants.</p>
        )}
        {n.placed === 0 && <Empty title="None are there" />}
      </Card>
    </div>
  );
}

/** Moves the sessions of a node to others, and says what became of each. */
function Drain(props: { of: Node; changed: () => void; close: () => void }) {
  const { of: n, close } = props;
  const [force, setForce] = useState(false);
  const [result, setResult] = useState<Schemas["NodeDrained"]>();
  const [error, setError] = useState<unknown>();
  const work = useRef<{ of: number; abort: AbortController } | undefined>(
    undefined,
  );
  const closed = useRef(false);
  useEffect(
    () => () => {
      closed.current = true;
    },
    [],
  );
  const [, draw] = useState(0);
  const run = async () => {
    const abort = new AbortController();
    work.current = { of: n.placed, abort };
    setError(undefined);
    draw((x) => x + 1);
    try {
      const d = await call<Schemas["NodeDrained"]>("POST", path(n) + "/drain", {
        json: { force },
        signal: abort.signal,
      });
      setResult(d);
      if (closed.current)
        say(
          d.kept?.length
            ? `${n.name}: ${boxes(d.kept.length)} stayed`
            : `${n.name} is drained`,
        );
    } catch (e) {
      setError(
        abort.signal.aborted
          ? new Error(
              `You stopped it. What was moved stays moved, and ${n.name} stays cordoned.`,
            )
          : e,
      );
    } finally {
      work.current = undefined;
      draw((x) => x + 1);
      props.changed();
    }
  };
  const running = work.current;
  const left = Math.min(n.placed, running?.of ?? n.placed);
  const rows = [
    ...(result?.moved ?? []).map((m) => ({
      id: m.receipt.sandbox,
      what: `moved to ${m.receipt.provider.replace(/^node-/, "")}`,
      name: m.session,
      tenant: m.tenant,
      why: m.receipt.lost?.length ? `lost: ${m.receipt.lost.join(", ")}` : "",
    })),
    ...(result?.ended ?? []).map((e) => ({
      id: e.sandbox,
      what: "ended",
      name: e.name,
      tenant: e.tenant,
      why: e.reason ?? "",
    })),
    ...(result?.kept ?? []).map((k) => ({
      id: k.sandbox,
      what: "stayed",
      name: k.name,
      tenant: k.tenant,
      why: k.reason ?? "",
    })),
  ];
  return (
    <Dialog title={`Drain ${n.name}`} close={close} wide={rows.length > 0}>
      <Problem error={error} />
      {result ? (
        <Table
          label="What became of its sandboxes"
          rows={rows}
          id={(r) => r.id}
          columns={[
            { head: "Name", cell: (r) => r.name },
            { head: "Tenant", cell: (r) => r.tenant, wide: true },
            {
              head: "What",
              cell: (r) => (
                <>
                  {r.what}
                  <div class="dim">{r.why}</div>
                </>
              ),
            },
          ]}
        />
      ) : running ? (
        <div role="status">
          <p>
            {running.of - left} of {boxes(running.of)} have left {n.name}. You
            can close this: the work goes on while the page is open.
          </p>
          <progress
            value={running.of - left}
            max={running.of}
            aria-label={`Draining ${n.name}`}
          />
        </div>
      ) : (
        <>
          <p>
            {n.name} gets no new sandboxes, and its sessions move to other
            nodes, one by one, with their workspaces or the files below
            /workspace. Their processes end.
          </p>
          <label>
            <input
              type="checkbox"
              checked={force}
              onChange={(e) => setForce(e.currentTarget.checked)}
            />{" "}
            End the sandboxes that belong to no session
          </label>
        </>
      )}
      <footer>
        {running ? (
          <Button kind="danger" act={() => running.abort.abort()}>
            Stop
          </Button>
        ) : result ? (
          <Button kind="primary" act={close}>
            Done
          </Button>
        ) : (
          <>
            <Button act={close}>Cancel</Button>
            <Button
              kind={force ? "danger" : "primary"}
              verb="admin"
              act={() => void run()}
            >
              Drain {n.name}
            </Button>
          </>
        )}
      </footer>
    </Dialog>
  );
}
