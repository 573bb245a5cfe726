import { useState } from "preact/hooks";
import { call, get, lines, request } from "../api";
import type { Schemas } from "../api";
import { useLoad } from "../live";
import {
  bytes,
  Button,
  Card,
  Dialog,
  Empty,
  Field,
  say,
  State,
  Table,
  Time,
  useConfirm,
  words,
} from "../ui";
import { tarOf } from "../tar";

type Template = Schemas["Template"];

export function Templates() {
  const [building, setBuilding] = useState(false);
  const list = useLoad(
    () => get<{ templates: Template[] }>("v1/templates"),
    [],
    /^template\./,
  );
  const confirm = useConfirm();
  const rows = list.data?.templates ?? [];
  return (
    <>
      <div class="head">
        <h1>Templates</h1>
        <div class="tools">
          <Button kind="primary" verb="write" act={() => setBuilding(true)}>
            Build a template
          </Button>
        </div>
      </div>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no templates" error={list.error}>
            A template is an image that is built from a Dockerfile.
          </Empty>
        ) : (
          <Table
            label="Templates"
            rows={rows}
            id={(t) => t.name + ":" + t.tag}
            columns={[
              {
                head: "Name",
                cell: (t) => (
                  <code>
                    template:{t.name}:{t.tag}
                  </code>
                ),
              },
              {
                head: "Base",
                cell: (t) => (
                  <span title={t.base}>
                    {t.base.replace(/^(sha256:\w{12})\w+$/, "$1…")}
                  </span>
                ),
                wide: true,
              },
              { head: "Steps", cell: (t) => t.steps, wide: true },
              { head: "Size", cell: (t) => bytes(t.size) },
              { head: "Built", cell: (t) => <Time at={t.created} /> },
              {
                head: "",
                right: true,
                cell: (t) => (
                  <Button
                    kind="danger"
                    verb="write"
                    label={`Remove template ${t.name}:${t.tag}`}
                    act={() =>
                      confirm.ask({
                        title: `Remove the template ${t.name}:${t.tag}?`,
                        text: "Sandboxes that were made from it stay.",
                        yes: `Remove ${t.name}`,
                        act: async () => {
                          await call(
                            "DELETE",
                            `v1/templates/${encodeURIComponent(t.name + ":" + t.tag)}`,
                          );
                          say(`${t.name}:${t.tag} is removed`);
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
      {building && (
        <Build
          close={() => {
            setBuilding(false);
            list.reload();
          }}
        />
      )}
      {confirm.dialog}
    </>
  );
}

function Build({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [text, setText] = useState("FROM host\nRUN echo hello > /etc/hello\n");
  const [log, setLog] = useState("");
  const [stop, setStop] = useState<AbortController>();
  const [end, setEnd] = useState<{ ok: boolean; text: string }>();
  const build = async () => {
    const abort = new AbortController();
    setStop(abort);
    setLog("");
    setEnd(undefined);
    try {
      const r = await request("POST", "v1/templates", {
        query: { name },
        body: tarOf("Dockerfile", text),
        headers: { "Content-Type": "application/x-tar" },
        signal: abort.signal,
      });
      for await (const l of lines<{
        event?: Partial<{
          step: number;
          steps: number;
          text: string;
          output: boolean;
          cached: boolean;
        }>;
        template?: Template;
        problem?: { detail?: string; hint?: string };
      }>(r)) {
        if (l.problem)
          throw new Error(
            [l.problem.detail, l.problem.hint].filter(Boolean).join(". "),
          );
        if (l.template)
          setEnd({
            ok: true,
            text: `template:${l.template.name}:${l.template.tag} is built, with ${bytes(l.template.size)}.`,
          });
        const e = l.event;
        if (e?.output) setLog((old) => old + e.text);
        else if (e)
          setLog(
            (old) =>
              `${old && !old.endsWith("\n") ? old + "\n" : old}${
                e.step ? `[${e.step}/${e.steps}] ` : ""
              }${e.text}${e.cached ? " (as before)" : ""}\n`,
          );
      }
    } catch (e) {
      const { text, hint } = words(e);
      setEnd({
        ok: false,
        text: abort.signal.aborted
          ? "The build was cancelled."
          : [text, hint].filter(Boolean).join("; "),
      });
    } finally {
      setStop(undefined);
    }
  };
  const leave = () => {
    if (stop) {
      stop.abort();
      say("The build was cancelled");
    }
    close();
  };
  return (
    <Dialog title="Build a template" close={leave} busy={!!stop} wide>
      <Field label="Name">
        <input
          value={name}
          autofocus
          onInput={(e) => setName(e.currentTarget.value)}
        />
      </Field>
      <Field label="Dockerfile">
        <textarea
          value={text}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </Field>
      {log && (
        <pre
          class="card log"
          role="log"
          aria-label="Log of the build"
          tabIndex={0}
          ref={(e) => {
            if (e) e.scrollTop = e.scrollHeight;
          }}
        >
          {log}
        </pre>
      )}
      {end && (
        <p role="status">
          <State state={end.ok ? "ok" : "failed"} /> {end.text}
        </p>
      )}
      <footer>
        {stop && (
          <Button kind="danger" act={() => stop.abort()}>
            Cancel the build
          </Button>
        )}
        {end?.ok ? (
          <Button kind="primary" act={close}>
            Done
          </Button>
        ) : (
          <Button kind="primary" off={!name && "Give it a name."} act={build}>
            {end ? "Build again" : "Build"}
          </Button>
        )}
      </footer>
    </Dialog>
  );
}
