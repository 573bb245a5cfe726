import { useState } from "preact/hooks";
import { call, get, request } from "../api";
import type { Event, Schemas } from "../api";
import { useLoad } from "../live";
import {
  bytes,
  Button,
  Card,
  Dialog,
  Empty,
  Field,
  may,
  Problem,
  save,
  say,
  State,
  Table,
  Time,
  useConfirm,
  why,
} from "../ui";

import { describe, isBad, isLook } from "./events";

type Key = Schemas["Key"];

export function Access({ who }: { who: Schemas["Caller"] }) {
  const [creating, setCreating] = useState(false);
  const [report, setReport] = useState<Schemas["AuditReport"]>();
  const admin = may("admin");
  const keys = useLoad(
    () =>
      admin ? get<{ keys: Key[] }>("v1/keys") : Promise.resolve({ keys: [] }),
    [],
    /^key\./,
  );
  const tenant = useLoad(() => get<Schemas["Tenant"]>("v1/tenant"), []);
  const confirm = useConfirm();
  const now = new Date().toISOString();
  const rows = keys.data?.keys.filter(
    (k) => !k.revoked && (!k.expires || k.expires > now),
  );
  const t = tenant.data;
  return (
    <>
      <div class="head">
        <h1>Keys and audit</h1>
        <div class="tools">
          <Button kind="primary" verb="admin" act={() => setCreating(true)}>
            New key
          </Button>
        </div>
      </div>
      <Card title="API keys">
        {!admin ? (
          <Empty title={why("admin")} />
        ) : !rows?.length ? (
          <Empty title="There are no keys" error={keys.error} />
        ) : (
          <Table
            label="API keys"
            rows={rows}
            id={(k) => k.id}
            columns={[
              {
                head: "Key",
                cell: (k) => (
                  <>
                    <code>{k.id}</code> {k.name}
                  </>
                ),
              },
              {
                head: "Allows",
                cell: (k) => (
                  <>
                    {(k.verbs ?? []).join(", ")}{" "}
                    {k.page && (
                      <span
                        class="chip"
                        title="A link of the owner of the machine signed this page in. It may also see tenants and manage nodes."
                      >
                        console page
                      </span>
                    )}
                  </>
                ),
              },
              {
                head: "Created",
                cell: (k) => <Time at={k.created} />,
                wide: true,
              },
              {
                head: "Ends",
                cell: (k) => (k.expires ? <Time at={k.expires} /> : "never"),
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (k) => (
                  <Button
                    kind="danger"
                    label={`Revoke ${k.name || k.id}`}
                    act={() =>
                      confirm.ask({
                        title: `Revoke the key ${k.name || k.id}?`,
                        text: "Programs and pages that use it are cut off within a second.",
                        yes: `Revoke ${k.name || k.id}`,
                        act: async () => {
                          await call("DELETE", `v1/keys/${k.id}`);
                          keys.reload();
                        },
                      })
                    }
                  >
                    Revoke
                  </Button>
                ),
              },
            ]}
          />
        )}
      </Card>
      <div class="grid">
        <Card title={`Tenant ${t?.id ?? ""}`}>
          <Problem error={tenant.error} />
          {t && (
            <dl>
              <dt>Sandboxes</dt>
              <dd>{of(t.usage.boxes, t.limits.boxes)}</dd>
              <dt>Processors</dt>
              <dd>{of(t.usage.cpus, t.limits.cpus)}</dd>
              <dt>Memory</dt>
              <dd>{of(t.usage.memory, t.limits.memory, bytes)}</dd>
              <dt>Disk</dt>
              <dd>{of(t.usage.disk, t.limits.disk, bytes)}</dd>
              <dt>Snapshots</dt>
              <dd>
                {of(t.usage.snapshotBytes, t.limits.snapshotBytes, bytes)}
              </dd>
            </dl>
          )}
        </Card>
        <Card
          title="Is the audit log complete?"
          tools={
            <Button
              verb="admin"
              act={async () => {
                setReport(await get<Schemas["AuditReport"]>("v1/audit/verify"));
              }}
            >
              Verify
            </Button>
          }
        >
          <p class="dim">
            Every operation is recorded in a chain of hashes before it is
            carried out.
          </p>
          {report && (
            <p>
              <State state={report.sound ? "ok" : "failed"} />{" "}
              {report.sound
                ? `${report.records} records are complete and unchanged.`
                : `Record ${report.faultSeq}: ${report.fault}`}
            </p>
          )}
        </Card>
      </div>
      {who.tenants && <Tenants />}
      {admin && <Audit />}
      {creating && (
        <New
          close={() => {
            setCreating(false);
            keys.reload();
          }}
        />
      )}
      {confirm.dialog}
    </>
  );
}

/** All tenants of the daemon, for its owner. */
function Tenants() {
  const list = useLoad(
    () => get<{ tenants: Schemas["Tenant"][] }>("v1/tenants"),
    [],
    /^tenant\.|^sandbox\./,
  );
  const rows = list.data?.tenants ?? [];
  return (
    <Card title="Tenants">
      <Problem error={list.error} />
      <Table
        label="Tenants"
        rows={rows}
        id={(t) => t.id}
        columns={[
          {
            head: "Tenant",
            cell: (t) => (
              <>
                <b>{t.id}</b>{" "}
                {t.disabled && (
                  <>
                    <State state="stopped" reason="its keys are refused" />{" "}
                    <Time at={t.disabled} />
                  </>
                )}
              </>
            ),
          },
          {
            head: "Sandboxes",
            cell: (t) => of(t.usage.boxes, t.limits.boxes),
          },
          {
            head: "Processors",
            cell: (t) => of(t.usage.cpus, t.limits.cpus),
            wide: true,
          },
          {
            head: "Memory",
            cell: (t) => of(t.usage.memory, t.limits.memory, bytes),
          },
          {
            head: "Snapshots",
            cell: (t) =>
              of(t.usage.snapshotBytes, t.limits.snapshotBytes, bytes),
            wide: true,
          },
          { head: "Since", cell: (t) => <Time at={t.created} />, wide: true },
        ]}
      />
      <p class="dim">
        Tenants are made, limited and disabled with <code>atoll tenant</code>.
      </p>
    </Card>
  );
}

const spans = { "the last hour": 1, "the last day": 24, "7 days": 168 };

/** Who did what. */
function Audit() {
  const [hours, setHours] = useState(1);
  const [search, setSearch] = useState("");
  const since = () => new Date(Date.now() - hours * 3600_000).toISOString();
  const list = useLoad(async () => {
    const all: Event[] = [];
    const from = since();
    let more = true;
    for (let after = 0; more && all.length < 20_000;) {
      const { events } = await get<{ events: Event[] }>("v1/events", {
        since: from,
        after,
        limit: 1000,
      });
      all.push(...events);
      more = events.length === 1000;
      after = events.at(-1)?.seq ?? after;
    }
    const shown = all.filter((e) => e.type !== "attempted").reverse();
    return { shown, more };
  }, [hours]);
  const wanted = search.toLowerCase();
  const found = (list.data?.shown ?? []).filter((e) =>
    wanted
      ? `${e.type} ${e.op} ${e.key} ${e.name} ${describe(e)}`
          .toLowerCase()
          .includes(wanted)
      : !isLook(e),
  );
  return (
    <Card
      title="Who did what"
      tools={
        <>
          <input
            type="search"
            aria-label="Search the audit log"
            placeholder="Search  ( / )"
            value={search}
            onInput={(e) => setSearch(e.currentTarget.value)}
          />
          <select
            aria-label="Time"
            value={hours}
            onChange={(e) => setHours(Number(e.currentTarget.value))}
          >
            {Object.entries(spans).map(([name, h]) => (
              <option key={h} value={h}>
                {name}
              </option>
            ))}
          </select>
          <Button act={list.reload}>Load again</Button>
          <Button
            verb="admin"
            act={async () => {
              const r = await request("GET", "v1/audit/export", {
                query: { since: since() },
              });
              save(await r.blob(), "audit.jsonl");
            }}
          >
            Download
          </Button>
        </>
      }
    >
      {list.data?.more && (
        <p role="alert">
          Only the first events of this time are here. Choose a shorter time, or
          download all.
        </p>
      )}
      {found.length === 0 ? (
        list.data || list.error ? (
          <Empty title="Nothing matches" error={list.error} />
        ) : null
      ) : (
        <>
          <Table
            label="Audit log"
            rows={found.slice(0, 200)}
            id={(e) => String(e.seq)}
            columns={[
              { head: "When", cell: (e) => <Time at={e.time} /> },
              {
                head: "Key",
                cell: (e) =>
                  e.key ? (
                    <code>{e.key}</code>
                  ) : (
                    <span class="dim short">the machine</span>
                  ),
                wide: true,
              },
              {
                head: "What",
                cell: (e) => <span class="mono">{e.op || e.type}</span>,
              },
              {
                head: "Of",
                cell: (e) =>
                  [...new Set([e.name, describe(e)])]
                    .filter(Boolean)
                    .join(" · "),
                wide: true,
              },
              {
                head: "Outcome",
                cell: (e) => (
                  <State
                    state={
                      e.type.endsWith("denied")
                        ? "denied"
                        : isBad(e)
                          ? "failed"
                          : "ok"
                    }
                  />
                ),
              },
            ]}
          />
          <p class="dim">
            {found.length > 200 &&
              `The newest 200 of ${found.length}. Search, or download all. `}
            {!wanted && "What only looked is found by a search."}
          </p>
        </>
      )}
    </Card>
  );
}

const of = (
  used: number,
  limit: number | undefined,
  show: (n: number) => string = String,
) => (limit ? `${show(used)} of ${show(limit)}` : `${show(used)}, no limit`);

function New({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [verbs, setVerbs] = useState(["read", "exec", "write"]);
  const [made, setMade] = useState<Key>();
  if (made)
    return (
      <Dialog title="The new key" close={close}>
        <p>It is shown only now. Copy it.</p>
        <pre class="card">{made.token}</pre>
        <footer>
          <Button
            act={async () => {
              await navigator.clipboard.writeText(made.token ?? "");
              say("Copied");
            }}
          >
            Copy
          </Button>
          <Button kind="primary" act={close}>
            Done
          </Button>
        </footer>
      </Dialog>
    );
  return (
    <Dialog title="New key" close={close}>
      <Field label="Name">
        <input value={name} onInput={(e) => setName(e.currentTarget.value)} />
      </Field>
      <fieldset>
        <legend>Allows</legend>
        {["read", "exec", "write", "admin"].map((v) => (
          <label key={v} style="margin-right:12px">
            <input
              type="checkbox"
              checked={verbs.includes(v)}
              onChange={(e) =>
                setVerbs(
                  e.currentTarget.checked
                    ? [...verbs, v]
                    : verbs.filter((x) => x !== v),
                )
              }
            />{" "}
            {v}
          </label>
        ))}
      </fieldset>
      <footer>
        <Button act={close}>Cancel</Button>
        <Button
          kind="primary"
          off={!verbs.length && "Choose a permission."}
          act={async () =>
            setMade(
              await call<Key>("POST", "v1/keys", { json: { name, verbs } }),
            )
          }
        >
          Create
        </Button>
      </footer>
    </Dialog>
  );
}
