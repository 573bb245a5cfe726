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
  go,
  Problem,
  say,
  State,
  Table,
  Time,
  useConfirm,
} from "../ui";

type Stored = Schemas["StoredProfile"];

const starter = `{
  "default": "deny",
  "rules": [
    { "action": "allow", "hosts": ["example.com", "*.example.com"] }
  ]
}`;

export function Egress({ at }: { at: string | undefined }) {
  const [creating, setCreating] = useState(false);
  const list = useLoad(
    () => get<{ profiles: Stored[] }>("v1/profiles"),
    [],
    /^profile\./,
  );
  const confirm = useConfirm();
  const rows = list.data?.profiles ?? [];
  return (
    <>
      <div class="head">
        <h1>Network rules</h1>
        <div class="tools">
          <Button kind="primary" verb="admin" act={() => setCreating(true)}>
            New profile
          </Button>
        </div>
      </div>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no profiles" error={list.error}>
            A profile says which hosts sandboxes may reach. Without one, a
            sandbox reaches only the hosts that it was made with.
          </Empty>
        ) : (
          <Table
            label="Profiles"
            rows={rows}
            id={(p) => p.name}
            open={(p) => go(`/egress/${p.name}`)}
            columns={[
              {
                head: "Name",
                cell: (p) => <a href={`#/egress/${p.name}`}>{p.name}</a>,
              },
              {
                head: "Default",
                cell: (p) => p.profile.default ?? "deny",
              },
              { head: "Rules", cell: (p) => p.profile.rules?.length ?? 0 },
              { head: "Version", cell: (p) => p.version, wide: true },
              {
                head: "Changed",
                cell: (p) => <Time at={p.updated} />,
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (p) => (
                  <Button
                    kind="danger"
                    verb="admin"
                    label={`Remove profile ${p.name}`}
                    off={(p.uses ?? 0) > 0 && `${p.uses} sandboxes use it.`}
                    act={() =>
                      confirm.ask({
                        title: `Remove the profile ${p.name}?`,
                        text: "No sandbox can be made with it then.",
                        yes: `Remove ${p.name}`,
                        act: async () => {
                          await call("DELETE", `v1/profiles/${p.name}`);
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
      {at && <One key={at} name={at} />}
      {creating && (
        <New
          close={(name) => {
            setCreating(false);
            if (name) go(`/egress/${name}`);
            list.reload();
          }}
        />
      )}
      {confirm.dialog}
    </>
  );
}

function One({ name }: { name: string }) {
  const one = useLoad(
    () => get<Stored>(`v1/profiles/${encodeURIComponent(name)}`),
    [name],
    /^profile\.applied/,
  );
  const [text, setText] = useState<string>();
  const [url, setUrl] = useState("");
  const [method, setMethod] = useState("GET");
  const [wrong, setWrong] = useState<unknown>();
  const [answer, setAnswer] = useState<Schemas["Explanation"]>();
  const p = one.data;
  if (!p) return <Problem error={one.error} />;
  const { name: _, ...rules } = p.profile;
  const shown = text ?? JSON.stringify(rules, null, 2);
  return (
    <div class="grid">
      <Card
        title={`${name}, version ${p.version}`}
        tools={
          <Button
            kind="primary"
            verb="admin"
            off={text === undefined && "Nothing is changed."}
            act={async () => {
              await call("PUT", `v1/profiles/${encodeURIComponent(name)}`, {
                json: JSON.parse(shown),
                query: { ifVersion: p.version },
              });
              setText(undefined);
              say(`${name} applies, also to running sandboxes`);
            }}
          >
            Apply
          </Button>
        }
      >
        <textarea
          aria-label="Rules as JSON"
          spellcheck={false}
          style="min-height:320px"
          value={shown}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </Card>
      <Card title="Would this request pass?">
        <form
          onSubmit={(e) => {
            e.preventDefault();
            call<Schemas["Explanation"]>(
              "POST",
              `v1/profiles/${encodeURIComponent(name)}/test`,
              { json: { method, url } },
            ).then(
              (a) => {
                setAnswer(a);
                setWrong(undefined);
              },
              (x: unknown) => {
                setAnswer(undefined);
                setWrong(x);
              },
            );
          }}
        >
          <div class="row">
            <select
              aria-label="Method"
              value={method}
              onChange={(e) => setMethod(e.currentTarget.value)}
            >
              {["GET", "POST", "PUT", "DELETE"].map((m) => (
                <option key={m}>{m}</option>
              ))}
            </select>
            <input
              aria-label="URL"
              placeholder="https://example.com/path"
              style="flex:1"
              value={url}
              onInput={(e) => setUrl(e.currentTarget.value)}
              required
            />
            <button class="btn primary">Test</button>
          </div>
        </form>
        <Problem error={wrong} />
        {answer && (
          <div style="margin-top:12px">
            <p>
              <State state={answer.allow ? "ok" : "denied"} />{" "}
              <b>{answer.allow ? "It passes" : "It is refused"}</b>:{" "}
              {answer.message}
            </p>
            {answer.steps?.map((s, i) => (
              <div key={i} class={s.matches ? "" : "dim"}>
                {s.rule || `rule ${i + 1}`}: {s.matches ? s.action : "no match"}
                {s.why ? ` (${s.why})` : ""}
              </div>
            ))}
          </div>
        )}
      </Card>
    </div>
  );
}

function New({ close }: { close: (name?: string) => void }) {
  const [name, setName] = useState("");
  const [text, setText] = useState(starter);
  return (
    <Dialog title="New profile" close={() => close()} wide>
      <Field label="Name">
        <input
          value={name}
          autofocus
          onInput={(e) => setName(e.currentTarget.value)}
        />
      </Field>
      <Field label="Rules" hint="The first that matches decides.">
        <textarea
          value={text}
          spellcheck={false}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </Field>
      <footer>
        <Button act={() => close()}>Cancel</Button>
        <Button
          kind="primary"
          act={async () => {
            await call("POST", "v1/profiles", {
              json: { ...JSON.parse(text), name },
            });
            close(name);
          }}
        >
          Create
        </Button>
      </footer>
    </Dialog>
  );
}
