import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Sandbox, Schemas } from "../api";
import { useLoad } from "../live";
import {
  Button,
  complain,
  Dialog,
  Empty,
  Field,
  go,
  Labels,
  parseBytes,
  Problem,
  say,
  State,
  Table,
  Time,
  useConfirm,
  Wall,
} from "../ui";

import { Held } from "./providers";

/** Loads all pages of the list. */
export async function allSandboxes(): Promise<Sandbox[]> {
  const all: Sandbox[] = [];
  let cursor = "";
  do {
    const page = await get<{ sandboxes: Sandbox[]; next?: string }>(
      "v1/sandboxes",
      { limit: 500, cursor },
    );
    all.push(...page.sandboxes);
    cursor = page.next ?? "";
  } while (cursor && all.length < 5000);
  return all;
}

const matches = (s: Sandbox, words: string[]) => {
  const text = [
    s.name,
    s.id,
    s.image,
    s.state,
    s.provider,
    ...Object.entries(s.labels ?? {}).map(([k, v]) => `${k}=${v}`),
  ]
    .join(" ")
    .toLowerCase();
  return words.every((w) => text.includes(w));
};

export function Sandboxes() {
  const [search, setSearch] = useState("");
  const [creating, setCreating] = useState(location.hash.endsWith("/new"));
  const list = useLoad(allSandboxes, [], /^sandbox\.|^lease\./);
  const confirm = useConfirm();
  const rows = (list.data ?? []).filter((s) =>
    matches(s, search.toLowerCase().split(/\s+/).filter(Boolean)),
  );
  return (
    <>
      <div class="head">
        <h1>Sandboxes</h1>
        <div class="tools">
          <input
            type="search"
            placeholder="Search: name, label, state  ( / )"
            aria-label="Search sandboxes"
            value={search}
            onInput={(e) => setSearch(e.currentTarget.value)}
          />
          <Button kind="primary" verb="write" act={() => setCreating(true)}>
            New sandbox
          </Button>
        </div>
      </div>
      <section class="card">
        {list.data && rows.length > 0 ? (
          <Table
            label="Sandboxes"
            rows={rows}
            id={(s) => s.id}
            open={(s) => go(`/sandboxes/${s.id}`)}
            columns={[
              {
                head: "Name",
                cell: (s) => (
                  <>
                    <a href={`#/sandboxes/${s.id}`}>{s.name}</a>{" "}
                    <Labels of={s.labels} />
                  </>
                ),
              },
              {
                head: "State",
                cell: (s) => <State state={s.state} reason={s.reason ?? ""} />,
              },
              { head: "Image", cell: (s) => s.image, wide: true },
              { head: "Provider", cell: (s) => s.provider ?? "", wide: true },
              {
                head: "Created",
                cell: (s) => <Time at={s.created} />,
                wide: true,
              },
              {
                head: "",
                right: true,
                cell: (s) => (
                  <div class="row">
                    <Power of={s} />
                    <Button
                      kind="danger"
                      verb="write"
                      label={`Remove ${s.name}`}
                      act={() =>
                        confirm.ask({
                          title: `Remove ${s.name}?`,
                          text: `Its files and processes end. Snapshots of ${s.name} stay.`,
                          yes: `Remove ${s.name}`,
                          act: () => remove(s),
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
        ) : list.data ? (
          <Empty title={search ? "Nothing matches" : "There are no sandboxes"}>
            {search
              ? "Try fewer words."
              : "Make one here, or with atoll create --image base demo."}
          </Empty>
        ) : (
          <Problem error={list.error} />
        )}
      </section>
      {creating && <NewSandbox close={() => setCreating(false)} />}
      {confirm.dialog}
    </>
  );
}

export async function remove(s: Sandbox) {
  await call("DELETE", `v1/sandboxes/${s.id}`);
  say(`${s.name} is removed`);
}

/** Pause and resume, or start. */
export function Power({ of: s }: { of: Sandbox }) {
  const path = `v1/sandboxes/${s.id}/`;
  switch (s.state) {
    case "running":
      return (
        <Button
          verb="write"
          label={`Pause ${s.name}`}
          act={async () => {
            await call("POST", path + "pause", { json: {} });
            say(`${s.name} is paused`, () => {
              call("POST", path + "resume", { json: {} }).catch(complain);
            });
          }}
        >
          Pause
        </Button>
      );
    case "paused":
      return (
        <Button
          verb="write"
          label={`Resume ${s.name}`}
          act={() => call("POST", path + "resume", { json: {} })}
        >
          Resume
        </Button>
      );
    case "stopped":
    case "exited":
      return (
        <Button
          verb="write"
          label={`Start ${s.name}`}
          act={() => call("POST", path + "start", { json: {} })}
        >
          Start
        </Button>
      );
    default:
      return null;
  }
}

const lines = (text: string) =>
  text
    .split(/[\n,]/)
    .map((l) => l.trim())
    .filter(Boolean);

const pairs = (text: string) =>
  Object.fromEntries(
    lines(text).map((l) => {
      const at = l.indexOf("=");
      return at < 0 ? [l, ""] : [l.slice(0, at), l.slice(at + 1)];
    }),
  );

export function NewSandbox(props: { close: () => void; snapshot?: string }) {
  const [f, setF] = useState({
    name: "",
    image: "",
    memory: "",
    cpus: "",
    minutes: "",
    network: "none",
    hosts: "",
    profile: "",
    workspace: "",
    provider: "",
    isolation: "",
    labels: "",
    env: "",
  });
  const [error, setError] = useState<unknown>();
  const [making, setMaking] = useState<AbortController>();
  const [cancelled, setCancelled] = useState(false);
  const [why, setWhy] = useState<Schemas["Choice"]>();
  const profiles = useLoad(
    () => get<{ profiles: Schemas["StoredProfile"][] }>("v1/profiles"),
    [],
  );
  const workspaces = useLoad(
    () => get<{ workspaces: Schemas["Workspace"][] }>("v1/workspaces"),
    [],
  );
  const providers = useLoad(
    () => get<{ providers: Schemas["Provider"][] }>("v1/providers"),
    [],
  );
  const wanted = f.provider || why?.choice;
  const chosen = providers.data?.providers.find((p) => p.name === wanted);
  const field = (name: keyof typeof f) => ({
    value: f[name],
    onInput: (e: { currentTarget: { value: string } }) =>
      setF({ ...f, [name]: e.currentTarget.value }),
  });
  const create = async () => {
    const memory = f.memory ? parseBytes(f.memory) : undefined;
    if (f.memory && memory === undefined)
      return setError(new Error("Memory is a size such as 512m or 2g."));
    const body: Record<string, unknown> = {
      ...(f.name && { name: f.name }),
      ...(props.snapshot
        ? { snapshot: props.snapshot }
        : f.image && { image: f.image }),
      ...(f.provider && { provider: f.provider }),
      ...(f.isolation && { isolation: f.isolation }),
      ...(f.labels && { labels: pairs(f.labels) }),
      ...(f.env && { env: pairs(f.env) }),
      ...(f.workspace && { workspaces: [{ name: f.workspace }] }),
      ...((memory || f.cpus) && {
        resources: {
          ...(memory && { memory }),
          ...(f.cpus && { cpus: Number(f.cpus) }),
        },
      }),
      ...(f.minutes && {
        lifetime: { timeoutMs: Math.round(Number(f.minutes) * 60_000) },
      }),
      ...(f.network === "hosts" && { network: { egress: lines(f.hosts) } }),
      ...(f.network === "profile" && { network: { profile: f.profile } }),
    };
    const abort = new AbortController();
    setMaking(abort);
    setError(undefined);
    setCancelled(false);
    try {
      const s = await call<Sandbox>("POST", "v1/sandboxes", {
        json: body,
        signal: abort.signal,
        headers: { "Idempotency-Key": crypto.randomUUID() },
      });
      props.close();
      say(`${s.name} runs`);
      go(`/sandboxes/${s.id}`);
    } catch (e) {
      if (abort.signal.aborted) setCancelled(true);
      else setError(e);
    } finally {
      setMaking(undefined);
    }
  };
  const leave = () => {
    if (making) {
      making.abort();
      say("Making the sandbox was cancelled");
    }
    props.close();
  };
  const explain = async () => {
    setWhy(
      await call<Schemas["Choice"]>("POST", "v1/providers/choose", {
        json: {
          ...(f.network !== "none" && { egress: "any" }),
          ...(f.memory && { limits: ["memory"] }),
          ...(f.provider && { provider: f.provider }),
          ...(f.isolation && { isolation: f.isolation }),
        },
      }),
    );
  };
  return (
    <Dialog
      title={props.snapshot ? `New from ${props.snapshot}` : "New sandbox"}
      close={leave}
      busy={!!making}
    >
      <form
        onSubmit={(e) => {
          e.preventDefault();
          if (!making) void create();
        }}
      >
        <Problem error={error} />
        <div class="two">
          <Field label="Name" hint="Left out: one is chosen">
            <input {...field("name")} autofocus />
          </Field>
          {!props.snapshot && (
            <Field label="Image" hint="Left out: the default of the provider">
              <input {...field("image")} placeholder="host" />
            </Field>
          )}
          <Field label="Memory">
            <input {...field("memory")} placeholder="2g" />
          </Field>
          <Field label="Processors">
            <input {...field("cpus")} type="number" min="0.1" step="0.1" />
          </Field>
          <Field label="Ends after minutes" hint="Left out: never">
            <input {...field("minutes")} type="number" min="1" />
          </Field>
          <Field label="Workspace">
            <select {...field("workspace")}>
              <option value="">none</option>
              {workspaces.data?.workspaces.map((w) => (
                <option key={w.name}>{w.name}</option>
              ))}
            </select>
          </Field>
          <Field label="Network">
            <select {...field("network")}>
              <option value="none">none</option>
              <option value="hosts">some hosts</option>
              <option value="profile">a profile</option>
            </select>
          </Field>
          <Field label="Isolation" hint="At least this">
            <select {...field("isolation")}>
              <option value="">that of the provider</option>
              <option value="kernel">a kernel of its own</option>
              <option value="hardware">a virtual machine</option>
            </select>
          </Field>
          <Field label="Provider">
            <select {...field("provider")}>
              <option value="">chosen by the daemon</option>
              {providers.data?.providers.map((p) => (
                <option key={p.name} value={p.name} disabled={!p.available}>
                  {p.name}
                </option>
              ))}
            </select>
          </Field>
        </div>
        {f.network === "hosts" && (
          <Field
            label="Allowed hosts"
            hint="One a line. None: every host is denied, and shown where you can allow it."
          >
            <textarea {...field("hosts")} style="min-height:72px" />
          </Field>
        )}
        {f.network === "profile" && (
          <Field label="Profile">
            <select {...field("profile")}>
              <option value="">choose one</option>
              {profiles.data?.profiles.map((p) => (
                <option key={p.name}>{p.name}</option>
              ))}
            </select>
          </Field>
        )}
        <details>
          <summary>Labels and environment</summary>
          <Field label="Labels" hint="KEY=VALUE, one a line">
            <textarea {...field("labels")} style="min-height:56px" />
          </Field>
          <Field label="Environment" hint="KEY=VALUE, one a line. No secrets.">
            <textarea {...field("env")} style="min-height:56px" />
          </Field>
        </details>
        {chosen && (
          <div class="field">
            <span>What holds in {chosen.name}</span>
            <div>
              Isolation: <Wall of={chosen.descriptor.isolation} />
            </div>
            <Held of={chosen.limits} />
          </div>
        )}
        {why && (
          <div class="card">
            {why.candidates?.map((c) => (
              <div key={c.provider}>
                <State state={c.fits ? "ok" : "stopped"} /> {c.provider}{" "}
                <span class="dim">
                  {c.provider === why.choice ? "is chosen:" : ""}{" "}
                  {c.reasons?.join("; ")}
                </span>
              </div>
            ))}
          </div>
        )}
        <p class="dim" role="status">
          {making
            ? "It is being made. An image that is not here yet is downloaded first."
            : cancelled && "It was cancelled."}
        </p>
        <footer>
          <Button act={explain}>Why this provider?</Button>
          <Button act={making ? () => making.abort() : leave}>Cancel</Button>
          <button
            class="btn primary"
            type="submit"
            aria-busy={making ? "true" : "false"}
          >
            {making && <span class="spin" aria-hidden="true" />}
            Create
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
