import { useEffect, useRef, useState } from "preact/hooks";
import { call, lines, request } from "../api";
import type { Sandbox, Schemas } from "../api";
import { useLoad } from "../live";
import {
  bytes,
  Button,
  Card,
  complain,
  Dialog,
  Empty,
  may,
  Problem,
  say,
  Time,
  useConfirm,
} from "../ui";
import { makeDiff, makeEditor } from "./editor";

type Info = Schemas["FileInfo"];

/** Files larger than this are not opened in the editor. */
const maxEdit = 2 << 20;

const join = (dir: string, name: string) =>
  (dir === "/" ? "" : dir) + "/" + name;
const base = (path: string) => path.split("/").at(-1) ?? path;

export default function Files({ sandbox: s }: { sandbox: Sandbox }) {
  const [dir, setDir] = useState("/");
  const [open, setOpen] = useState<Info>();
  const [over, setOver] = useState(false);
  const [progress, setProgress] = useState("");
  const confirm = useConfirm();
  const path = `v1/sandboxes/${s.id}/files`;
  const list = useLoad(
    async () => {
      const r = await request("GET", path + "/list", {
        query: { path: dir, depth: 1 },
      });
      const all: Info[] = [];
      for await (const l of lines<Info & { error?: { detail?: string } }>(r)) {
        if (l.error) throw new Error(l.error.detail);
        all.push(l);
      }
      const kind = (i: Info) => (i.type === "dir" ? 0 : 1);
      return all
        .filter((i) => i.path !== dir)
        .sort(
          (a, b) =>
            kind(a) - kind(b) || base(a.path).localeCompare(base(b.path)),
        );
    },
    [s.id, s.state, dir],
    /^files\./,
  );
  const full = (i: Info) =>
    i.path.startsWith("/") ? i.path : join(dir, i.path);
  const upload = async (files: FileList | null | undefined) => {
    for (const f of files ?? []) {
      setProgress(`Sending ${f.name}, ${bytes(f.size)}`);
      try {
        await request("PUT", path, {
          query: { path: join(dir, f.name) },
          body: f,
        });
      } finally {
        setProgress("");
      }
    }
    list.reload();
  };
  const download = async (i: Info) => {
    setProgress(`Fetching ${base(i.path)}`);
    try {
      const r =
        i.type === "dir"
          ? await request("GET", path + "/archive", {
              query: { path: full(i) },
            })
          : await request("GET", path, { query: { path: full(i) } });
      const url = URL.createObjectURL(await r.blob());
      const a = document.createElement("a");
      a.href = url;
      a.download = base(i.path) + (i.type === "dir" ? ".tar" : "");
      a.click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } finally {
      setProgress("");
    }
  };
  const crumbs = dir.split("/").filter(Boolean);
  return (
    <div class="files">
      <Card
        title={
          <div class="crumbs">
            <button class="link" onClick={() => setDir("/")}>
              /
            </button>
            {crumbs.map((c, i) => (
              <button
                class="link"
                key={i}
                onClick={() => setDir("/" + crumbs.slice(0, i + 1).join("/"))}
              >
                {c}/
              </button>
            ))}
          </div>
        }
      >
        <div
          class={over ? "drop" : ""}
          onDragOver={(e) => {
            e.preventDefault();
            setOver(true);
          }}
          onDragLeave={() => setOver(false)}
          onDrop={(e) => {
            e.preventDefault();
            setOver(false);
            if (may("write")) upload(e.dataTransfer?.files).catch(complain);
          }}
        >
          <div class="row" style="margin-bottom:8px">
            <Upload send={upload} />
            <Button
              verb="write"
              act={async () => {
                const name = prompt("Name of the new file");
                if (!name) return;
                await request("PUT", path, {
                  query: { path: join(dir, name), noReplace: true },
                  body: "",
                });
                list.reload();
              }}
            >
              New file
            </Button>
            <Button
              verb="write"
              act={async () => {
                const name = prompt("Name of the new directory");
                if (!name) return;
                await call("POST", path + "/mkdir", {
                  json: { path: join(dir, name) },
                });
                list.reload();
              }}
            >
              New directory
            </Button>
          </div>
          {progress && <p role="status">{progress}…</p>}
          <Problem error={list.error} />
          {list.data?.length === 0 && (
            <Empty title="The directory is empty">
              Drop files here to send them.
            </Empty>
          )}
          <table aria-label={`Files in ${dir}`}>
            <tbody>
              {dir !== "/" && (
                <tr>
                  <td colSpan={3}>
                    <button
                      class="link"
                      onClick={() =>
                        setDir("/" + crumbs.slice(0, -1).join("/"))
                      }
                    >
                      ..
                    </button>
                  </td>
                </tr>
              )}
              {list.data?.map((i) => (
                <tr key={i.path}>
                  <td>
                    <button
                      class="link mono"
                      title={i.target ? `→ ${i.target}` : undefined}
                      onClick={() =>
                        i.type === "dir" ? setDir(full(i)) : setOpen(i)
                      }
                    >
                      {base(i.path)}
                      {i.type === "dir" ? "/" : i.type === "symlink" ? "@" : ""}
                    </button>
                    <div class="dim">
                      {i.type === "file" ? bytes(i.size) : i.type} ·{" "}
                      <Time at={i.modTime} />
                    </div>
                  </td>
                  <td class="right">
                    <div class="row">
                      <Button
                        label={`Download ${base(i.path)}`}
                        act={() => download(i)}
                      >
                        ↓
                      </Button>
                      <Button
                        kind="danger"
                        verb="write"
                        label={`Remove ${base(i.path)}`}
                        act={() =>
                          confirm.ask({
                            title: `Remove ${full(i)}?`,
                            text:
                              i.type === "dir"
                                ? "The directory is removed with everything in it."
                                : "The file is removed from the sandbox.",
                            yes: `Remove ${base(i.path)}`,
                            act: async () => {
                              await call("DELETE", path, {
                                query: { path: full(i), recursive: true },
                              });
                              list.reload();
                            },
                          })
                        }
                      >
                        ×
                      </Button>
                    </div>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <div>
        {open ? (
          <Editor key={full(open)} sandbox={s} path={full(open)} info={open} />
        ) : (
          <Card>
            <Empty title="No file is open">Choose one in the list.</Empty>
          </Card>
        )}
      </div>
      {confirm.dialog}
    </div>
  );
}

function Upload({ send }: { send: (f: FileList | null) => Promise<void> }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Files to send"
        onChange={(e) => {
          const i = e.currentTarget;
          send(i.files)
            .catch(complain)
            .finally(() => (i.value = ""));
        }}
      />
      <Button verb="write" act={() => input.current?.click()}>
        Upload
      </Button>
    </>
  );
}

function Editor(props: { sandbox: Sandbox; path: string; info: Info }) {
  const { sandbox: s, path } = props;
  const at = `v1/sandboxes/${s.id}/files`;
  const place = useRef<HTMLDivElement>(null);
  const editor = useRef<ReturnType<typeof makeEditor>>(undefined);
  const [saved, setSaved] = useState<string>();
  const [changed, setChanged] = useState(false);
  const [diff, setDiff] = useState(false);
  const [error, setError] = useState<unknown>();
  const tooLarge = props.info.size > maxEdit;

  useEffect(() => {
    if (tooLarge) return;
    let over = false;
    request("GET", at, { query: { path } })
      .then((r) => r.arrayBuffer())
      .then((b) => {
        if (over) return;
        const text = new TextDecoder("utf-8", { fatal: true }).decode(b);
        setSaved(text);
        editor.current = makeEditor(
          place.current!,
          path,
          text,
          may("write"),
          () => setChanged(true),
        );
      })
      .catch((e: unknown) =>
        setError(
          e instanceof TypeError
            ? new Error("The file is not text. Download it instead.")
            : e,
        ),
      );
    return () => {
      over = true;
      editor.current?.destroy();
    };
  }, [path]);

  const save = async () => {
    const text = editor.current!.state.doc.toString();
    await request("PUT", at, { query: { path }, body: text });
    setSaved(text);
    setChanged(false);
    setDiff(false);
    say(`${path} is saved`);
  };
  return (
    <Card
      title={<code>{path}</code>}
      tools={
        <>
          <Button
            off={!changed && "Nothing is changed."}
            act={() => setDiff(true)}
          >
            Show changes
          </Button>
          <Button
            kind="primary"
            verb="write"
            off={!changed && "Nothing is changed."}
            act={save}
          >
            Save
          </Button>
        </>
      }
    >
      <Problem error={error} />
      {tooLarge && (
        <Empty title={`The file has ${bytes(props.info.size)}`}>
          It is too large for the editor. Download it instead.
        </Empty>
      )}
      {!error && !tooLarge && (
        <div
          class="editor"
          ref={place}
          onKeyDown={(e) => {
            if ((e.ctrlKey || e.metaKey) && e.key === "s") {
              e.preventDefault();
              if (changed) save().catch(complain);
            }
          }}
        />
      )}
      {diff && (
        <Dialog title={`Changes of ${path}`} close={() => setDiff(false)} wide>
          <Diff
            path={path}
            before={saved ?? ""}
            after={editor.current!.state.doc.toString()}
          />
          <footer>
            <Button act={() => setDiff(false)}>Go on editing</Button>
            <Button kind="primary" verb="write" act={save}>
              Save
            </Button>
          </footer>
        </Dialog>
      )}
    </Card>
  );
}

function Diff(props: { path: string; before: string; after: string }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const view = makeDiff(
      place.current!,
      props.path,
      props.before,
      props.after,
    );
    return () => view.destroy();
  }, []);
  return <div class="editor" style="height:60vh" ref={place} />;
}
