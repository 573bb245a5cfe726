import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Schemas } from "../api";
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
  say,
  State,
  Table,
  Time,
  useConfirm,
  why,
} from "../ui";

type Key = Schemas["Key"];

export function Access() {
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
              { head: "Allows", cell: (k) => (k.verbs ?? []).join(", ") },
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
          title="Audit log"
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

const of = (
  used: number,
  limit: number | undefined,
  show: (n: number) => string = String,
) => `${show(used)} of ${limit ? show(limit) : "no limit"}`;

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
