import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Schemas, Session } from "../api";
import { useLoad } from "../live";
import {
  Button,
  Card,
  Dialog,
  Empty,
  Field,
  go,
  Labels,
  Problem,
  say,
  State,
  Table,
  Time,
  useConfirm,
} from "../ui";

const changes = /^session\.|^lease\.|^route\.|^sandbox\./;

export function Sessions({ at }: { at: string | undefined }) {
  const [creating, setCreating] = useState(false);
  const list = useLoad(
    () => get<{ sessions: Session[] }>("v1/sessions"),
    [],
    changes,
  );
  const rows = list.data?.sessions ?? [];
  return (
    <>
      <div class="head">
        <h1>Sessions</h1>
        <div class="tools">
          <Button kind="primary" verb="write" act={() => setCreating(true)}>
            New session
          </Button>
        </div>
      </div>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no sessions" error={list.error}>
            A session is a name that always leads to a living sandbox:{" "}
            <code>atoll session create work</code>
          </Empty>
        ) : (
          <Table
            label="Sessions"
            rows={rows}
            id={(s) => s.id}
            open={(s) => go(`/sessions/${s.id}`)}
            columns={[
              {
                head: "Name",
                cell: (s) => (
                  <>
                    <a href={`#/sessions/${s.id}`}>{s.name}</a>{" "}
                    <Labels of={s.labels} />
                  </>
                ),
              },
              {
                head: "State",
                cell: (s) => <State state={s.lease?.state ?? "cold"} />,
              },
              {
                head: "Sandbox",
                cell: (s) =>
                  s.lease?.sandbox ? (
                    <a href={`#/sandboxes/${s.lease.sandbox}`}>
                      {s.lease.sandbox.slice(0, 12)}
                    </a>
                  ) : (
                    <span class="dim">none</span>
                  ),
              },
              {
                head: "Provider",
                cell: (s) => s.lease?.provider ?? s.provider ?? "",
                wide: true,
              },
              {
                head: "Holders",
                cell: (s) => s.lease?.holders?.length ?? 0,
                wide: true,
              },
              {
                head: "Created",
                cell: (s) => <Time at={s.created} />,
                wide: true,
              },
            ]}
          />
        )}
      </Card>
      {at && <One key={at} id={at} />}
      {creating && (
        <NewSession
          close={() => {
            setCreating(false);
            list.reload();
          }}
        />
      )}
    </>
  );
}

function One({ id }: { id: string }) {
  const one = useLoad(() => get<Session>(`v1/sessions/${id}`), [id], changes);
  const targets = useLoad(
    () =>
      get<{ targets: Schemas["SessionTarget"][] }>(`v1/sessions/${id}/targets`),
    [id],
    changes,
  );
  const confirm = useConfirm();
  const s = one.data;
  if (!s) return <Problem error={one.error} />;
  return (
    <div class="grid">
      <Card
        title={s.name}
        tools={
          <>
            <Button
              verb="write"
              act={async () => {
                await call("POST", `v1/sessions/${id}/save`, { json: {} });
                say(`${s.name} is saved`);
              }}
            >
              Save
            </Button>
            <Button
              kind="danger"
              verb="write"
              act={() =>
                confirm.ask({
                  title: `Remove the session ${s.name}?`,
                  text: "Its sandbox is removed. Workspaces stay.",
                  yes: `Remove ${s.name}`,
                  act: async () => {
                    await call("DELETE", `v1/sessions/${id}`);
                    go("/sessions");
                  },
                })
              }
            >
              Remove
            </Button>
          </>
        }
      >
        <dl>
          <dt>State</dt>
          <dd>
            <State state={s.lease?.state ?? "cold"} />
          </dd>
          <dt>Epoch</dt>
          <dd>{s.lease?.epoch ?? 0}</dd>
          <dt>Image</dt>
          <dd>{s.spec.image ?? "the default"}</dd>
          {s.record === "on-turn" && (
            <>
              <dt>Recordings</dt>
              <dd>of each turn that uses the desktop</dd>
            </>
          )}
          <dt>Holders</dt>
          <dd>
            {s.lease?.holders?.map((h) => (
              <div key={h.id}>
                {h.kind} {h.id} <Time at={h.beat} />
              </div>
            ))}
            {!s.lease?.holders?.length && "none"}
          </dd>
          {s.receipt && (
            <>
              <dt>Last sandbox</dt>
              <dd>
                {s.receipt.outcome} {s.receipt.why}{" "}
                {s.receipt.lost?.length
                  ? `lost: ${s.receipt.lost.join(", ")}`
                  : ""}
              </dd>
            </>
          )}
        </dl>
      </Card>
      <Card title="Where it could run">
        <Problem error={targets.error} />
        {targets.data?.targets.map((t) => (
          <div class="row" key={t.provider} style="margin-bottom:6px">
            <State state={t.fits ? "ok" : "stopped"} />
            <b>{t.provider}</b>
            <span class="dim">{(t.reasons ?? []).join("; ")}</span>
            {t.current ? (
              <span class="chip">now</span>
            ) : (
              <Button
                verb="write"
                off={!t.fits && (t.reasons ?? []).join("; ")}
                label={`Move to ${t.provider}`}
                act={async () => {
                  const r = await call<Schemas["Swapped"]>(
                    "POST",
                    `v1/sessions/${id}/swap`,
                    { json: { target: t.provider } },
                  );
                  say(
                    r.swapped
                      ? `${s.name} runs on ${t.provider}`
                      : `${s.name} stays: ${r.reason}`,
                  );
                }}
              >
                Move here
              </Button>
            )}
          </div>
        ))}
      </Card>
      <Card title="Earlier sandboxes">
        {s.lease?.history?.map((e) => (
          <div key={e.epoch}>
            <b>{e.epoch}</b> {e.provider} <Time at={e.began} />{" "}
            <span class="dim">{e.why}</span>
          </div>
        ))}
        {!s.lease?.history?.length && <Empty title="None" />}
      </Card>
      {confirm.dialog}
    </div>
  );
}

function NewSession({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [image, setImage] = useState("");
  const [record, setRecord] = useState(false);
  return (
    <Dialog title="New session" close={close}>
      <Field label="Name">
        <input
          value={name}
          autofocus
          onInput={(e) => setName(e.currentTarget.value)}
        />
      </Field>
      <Field label="Image" hint="Left out: the default of the provider">
        <input value={image} onInput={(e) => setImage(e.currentTarget.value)} />
      </Field>
      <label>
        <input
          type="checkbox"
          checked={record}
          onChange={(e) => setRecord(e.currentTarget.checked)}
        />{" "}
        Record the desktop in every turn that uses it
      </label>
      <footer>
        <Button act={close}>Cancel</Button>
        <Button
          kind="primary"
          act={async () => {
            await call("POST", "v1/sessions", {
              json: {
                name,
                ...(image && { spec: { image } }),
                ...(record && { record: "on-turn" }),
              },
            });
            close();
          }}
        >
          Create
        </Button>
      </footer>
    </Dialog>
  );
}
