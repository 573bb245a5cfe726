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
  go,
  Problem,
  say,
  Table,
  Time,
  useConfirm,
} from "../ui";

type Workspace = Schemas["Workspace"];
type Version = Schemas["WorkspaceVersion"];

export function Workspaces({ at }: { at: string | undefined }) {
  const [creating, setCreating] = useState(false);
  const list = useLoad(
    () => get<{ workspaces: Workspace[] }>("v1/workspaces"),
    [],
    /^workspace\.|^sandbox\./,
  );
  const confirm = useConfirm();
  const rows = list.data?.workspaces ?? [];
  return (
    <>
      <div class="head">
        <h1>Workspaces</h1>
        <div class="tools">
          <Button kind="primary" verb="write" act={() => setCreating(true)}>
            New workspace
          </Button>
        </div>
      </div>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no workspaces" error={list.error}>
            A workspace is a versioned directory that outlives sandboxes.
          </Empty>
        ) : (
          <Table
            label="Workspaces"
            rows={rows}
            id={(w) => w.id}
            open={(w) => go(`/workspaces/${w.name}`)}
            columns={[
              {
                head: "Name",
                cell: (w) => <a href={`#/workspaces/${w.name}`}>{w.name}</a>,
              },
              {
                head: "Latest",
                cell: (w) =>
                  w.latest
                    ? `version ${w.latest.number}, ${bytes(w.latest.bytes)}`
                    : "none yet",
              },
              {
                head: "Used by",
                cell: (w) => (w.attached ?? []).length,
                wide: true,
              },
              {
                head: "Created",
                cell: (w) => <Time at={w.created} />,
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (w) => (
                  <Button
                    kind="danger"
                    verb="write"
                    label={`Remove workspace ${w.name}`}
                    off={(w.attached ?? []).length > 0 && "A sandbox uses it."}
                    act={() =>
                      confirm.ask({
                        title: `Remove the workspace ${w.name}?`,
                        text: "All of its versions are removed. This cannot be undone.",
                        yes: `Remove ${w.name}`,
                        act: async () => {
                          await call("DELETE", `v1/workspaces/${w.name}`);
                          list.reload();
                        },
                      })
                    }
                  >
                    Remove
                  </Button>
                ),
              },
            ]}
          />
        )}
      </Card>
      {at && <History key={at} name={at} />}
      {creating && (
        <New
          close={() => {
            setCreating(false);
            list.reload();
          }}
        />
      )}
      {confirm.dialog}
    </>
  );
}

function History({ name }: { name: string }) {
  const path = `v1/workspaces/${encodeURIComponent(name)}`;
  const [diff, setDiff] = useState<number>();
  const list = useLoad(
    () => get<{ versions: Version[] }>(path + "/versions"),
    [name],
    /^workspace\./,
  );
  const versions = [...(list.data?.versions ?? [])].sort(
    (a, b) => b.number - a.number,
  );
  return (
    <Card
      title={`History of ${name}`}
      tools={
        <Button
          verb="write"
          act={async () => {
            const v = await call<Version>("POST", path + "/persist", {
              json: {},
            });
            say(`Version ${v.number} is saved`);
            list.reload();
          }}
        >
          Save a version
        </Button>
      }
    >
      <Problem error={list.error} />
      {versions.length === 0 && <Empty title="No version was saved yet" />}
      {versions.length > 0 && (
        <Table
          label="Versions"
          rows={versions}
          id={(v) => String(v.number)}
          columns={[
            { head: "Version", cell: (v) => <b>{v.number}</b> },
            { head: "Note", cell: (v) => v.note ?? "" },
            { head: "Files", cell: (v) => v.files, wide: true },
            { head: "Size", cell: (v) => bytes(v.bytes) },
            { head: "Saved", cell: (v) => <Time at={v.created} /> },
            {
              head: "",
              right: true,
              cell: (v) => (
                <div class="row">
                  <Button
                    off={v.number <= 1 && "It is the first."}
                    label={`Changes of version ${v.number}`}
                    act={() => setDiff(v.number)}
                  >
                    Changes
                  </Button>
                  <Button
                    verb="write"
                    label={`Restore version ${v.number}`}
                    off={
                      v.number === versions[0]?.number && "It is the latest."
                    }
                    act={async () => {
                      const now = await call<Version>(
                        "POST",
                        path + "/restore",
                        { json: { version: v.number } },
                      );
                      say(
                        `Version ${v.number} is restored as version ${now.number}`,
                      );
                      list.reload();
                    }}
                  >
                    Restore
                  </Button>
                </div>
              ),
            },
          ]}
        />
      )}
      {diff !== undefined && (
        <Changes path={path} to={diff} close={() => setDiff(undefined)} />
      )}
    </Card>
  );
}

function Changes(props: { path: string; to: number; close: () => void }) {
  const list = useLoad(
    () =>
      get<Schemas["DiffOutputBody"]>(props.path + "/diff", {
        from: props.to - 1,
        to: props.to,
      }),
    [props.to],
  );
  return (
    <Dialog title={`Changes of version ${props.to}`} close={props.close} wide>
      <Problem error={list.error} />
      {list.data?.changes?.map((c) => (
        <div key={c.path}>
          <span class="chip">{c.kind}</span> <code>{c.path}</code>{" "}
          <span class="dim">{c.dir ? "" : bytes(c.size)}</span>
        </div>
      ))}
      {list.data?.changes?.length === 0 && <Empty title="Nothing changed" />}
      {list.data?.more && <p class="dim">There are more.</p>}
    </Dialog>
  );
}

function New({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  return (
    <Dialog title="New workspace" close={close}>
      <Field label="Name">
        <input
          value={name}
          autofocus
          onInput={(e) => setName(e.currentTarget.value)}
        />
      </Field>
      <footer>
        <Button act={close}>Cancel</Button>
        <Button
          kind="primary"
          act={async () => {
            await call("POST", "v1/workspaces", { json: { name } });
            close();
          }}
        >
          Create
        </Button>
      </footer>
    </Dialog>
  );
}
