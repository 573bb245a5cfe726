import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Schemas } from "../api";
import { useLoad } from "../live";
import {
  Button,
  Card,
  Dialog,
  Empty,
  Field,
  Labels,
  say,
  Table,
  Time,
  useConfirm,
} from "../ui";

type Secret = Schemas["StoredSecret"];

export function Secrets() {
  const [editing, setEditing] = useState<Secret | "new">();
  const list = useLoad(
    () => get<{ secrets: Secret[] }>("v1/secrets"),
    [],
    /^secret\./,
  );
  const confirm = useConfirm();
  const rows = list.data?.secrets ?? [];
  return (
    <>
      <div class="head">
        <h1>Secrets</h1>
        <div class="tools">
          <Button kind="primary" verb="admin" act={() => setEditing("new")}>
            New secret
          </Button>
        </div>
      </div>
      <p class="dim">
        The gateway adds a secret to requests to its hosts. Sandboxes use it
        without seeing it. Nobody can read a value here.
      </p>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no secrets" error={list.error} />
        ) : (
          <Table
            label="Secrets"
            rows={rows}
            id={(s) => s.name}
            columns={[
              {
                head: "Name",
                cell: (s) => (
                  <>
                    <b>{s.name}</b> <Labels of={s.labels} />
                    <div class="dim">{s.description}</div>
                  </>
                ),
              },
              { head: "Hosts", cell: (s) => (s.hosts ?? []).join(", ") },
              { head: "Version", cell: (s) => s.version, wide: true },
              {
                head: "Changed",
                cell: (s) => <Time at={s.updated} />,
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (s) => (
                  <div class="row">
                    <Button
                      verb="admin"
                      label={`Rotate ${s.name}`}
                      act={() => setEditing(s)}
                    >
                      Rotate
                    </Button>
                    <Button
                      kind="danger"
                      verb="admin"
                      label={`Remove secret ${s.name}`}
                      act={() =>
                        confirm.ask({
                          title: `Remove the secret ${s.name}?`,
                          text: "Requests that need it will be sent without it, or fail.",
                          yes: `Remove ${s.name}`,
                          act: async () => {
                            await call("DELETE", `v1/secrets/${s.name}`);
                            list.reload();
                          },
                        })
                      }
                    >
                      Remove
                    </Button>
                  </div>
                ),
              },
            ]}
          />
        )}
      </Card>
      {editing && (
        <Edit
          secret={editing === "new" ? undefined : editing}
          close={() => {
            setEditing(undefined);
            list.reload();
          }}
        />
      )}
      {confirm.dialog}
    </>
  );
}

function Edit(props: { secret: Secret | undefined; close: () => void }) {
  const [name, setName] = useState("");
  const [hosts, setHosts] = useState("");
  const [value, setValue] = useState("");
  const s = props.secret;
  return (
    <Dialog title={s ? `Rotate ${s.name}` : "New secret"} close={props.close}>
      {!s && (
        <>
          <Field label="Name">
            <input
              value={name}
              onInput={(e) => setName(e.currentTarget.value)}
            />
          </Field>
          <Field label="Hosts" hint="To which it may be sent, one a line">
            <textarea
              value={hosts}
              style="min-height:56px"
              onInput={(e) => setHosts(e.currentTarget.value)}
            />
          </Field>
        </>
      )}
      <Field label="Value">
        <input
          type="password"
          autocomplete="off"
          value={value}
          onInput={(e) => setValue(e.currentTarget.value)}
        />
      </Field>
      <footer>
        <Button act={props.close}>Cancel</Button>
        <Button
          kind="primary"
          off={!value && "Give a value."}
          act={async () => {
            if (s)
              await call("PUT", `v1/secrets/${s.name}/value`, {
                json: { value },
              });
            else
              await call("POST", "v1/secrets", {
                json: {
                  name,
                  value,
                  hosts: hosts.split(/\s+/).filter(Boolean),
                },
              });
            setValue("");
            say(`${s?.name ?? name} is stored`);
            props.close();
          }}
        >
          Store
        </Button>
      </footer>
    </Dialog>
  );
}
