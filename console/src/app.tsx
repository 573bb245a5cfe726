import { useEffect, useMemo, useState } from "preact/hooks";
import { get, onSignedOut, signedIn, signIn, signOut } from "./api";
import type { Sandbox, Schemas } from "./api";
import { follow, stop, useConnected, useLoad } from "./live";
import { Button, Dialog, go, setVerbs, Toasts, words } from "./ui";
import { Overview } from "./pages/overview";
import { Sandboxes } from "./pages/sandboxes";
import { SandboxPage } from "./pages/sandbox";
import { Sessions } from "./pages/sessions";
import { Snapshots } from "./pages/snapshots";
import { Workspaces } from "./pages/workspaces";
import { Templates } from "./pages/templates";
import { Egress } from "./pages/egress";
import { Secrets } from "./pages/secrets";
import { Recordings } from "./pages/recordings";
import { Providers } from "./pages/providers";
import { Machines } from "./pages/machines";
import { Nodes } from "./pages/nodes";
import { Usage } from "./pages/usage";
import { Access } from "./pages/access";
import { Activity } from "./pages/activity";

const pages = [
  { id: "", name: "Overview", show: () => <Overview /> },
  { id: "sandboxes", name: "Sandboxes", show: Sandboxish },
  {
    id: "sessions",
    name: "Sessions",
    show: (p: string[]) => <Sessions at={p[0]} />,
  },
  { id: "snapshots", name: "Snapshots", show: () => <Snapshots /> },
  {
    id: "workspaces",
    name: "Workspaces",
    show: (p: string[]) => <Workspaces at={p[0]} />,
  },
  {
    id: "recordings",
    name: "Recordings",
    show: (p: string[]) => <Recordings at={p[0]} />,
  },
  { id: "templates", name: "Templates", show: () => <Templates /> },
  {
    id: "egress",
    name: "Network rules",
    show: (p: string[]) => <Egress at={p[0]} />,
  },
  { id: "secrets", name: "Secrets", show: () => <Secrets /> },
  { id: "providers", name: "Providers", show: () => <Providers /> },
  { id: "machines", name: "Machines", show: () => <Machines /> },
  { id: "nodes", name: "Nodes", show: (p: string[]) => <Nodes at={p[0]} /> },
  { id: "usage", name: "Usage", show: () => <Usage /> },
  { id: "activity", name: "Activity", show: () => <Activity /> },
  {
    id: "access",
    name: "Keys and audit",
    show: (_: string[], who: Schemas["Caller"]) => <Access who={who} />,
  },
] as const;

function Sandboxish(p: string[]) {
  return p[0] ? (
    <SandboxPage key={p[0]} id={p[0]} tab={p[1] ?? ""} />
  ) : (
    <Sandboxes />
  );
}

function useRoute(): string[] {
  const read = () =>
    location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [route, set] = useState(read);
  useEffect(() => {
    const changed = () => set(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

export function App() {
  const [caller, setCaller] = useState<Schemas["Caller"]>();
  const [failed, setFailed] = useState<unknown>();
  const [starting, setStarting] = useState(true);

  const enter = async () => {
    const who = await get<Schemas["Caller"]>("v1/caller");
    setVerbs(who.verbs ?? []);
    setCaller(who);
    follow();
  };
  useEffect(() => {
    onSignedOut(() => {
      stop();
      setCaller(undefined);
    });
    const begin = async () => {
      const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
      if (code) {
        history.replaceState(null, "", location.pathname);
        await signIn({ code });
      }
      if (signedIn()) await enter();
    };
    begin()
      .catch(setFailed)
      .finally(() => setStarting(false));
  }, []);

  if (starting) return null;
  return (
    <>
      {caller ? (
        <Shell caller={caller} />
      ) : (
        <SignIn
          failed={failed}
          enter={async (key) => {
            await signIn({ key });
            setFailed(undefined);
            await enter();
          }}
          again={enter}
        />
      )}
      <Toasts />
    </>
  );
}

function SignIn(props: {
  failed: unknown;
  enter: (key: string) => Promise<void>;
  again: () => Promise<void>;
}) {
  const [key, setKey] = useState("");
  const [error, setError] = useState<unknown>(props.failed);
  useEffect(() => setError(props.failed), [props.failed]);
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    try {
      await props.enter(key);
    } catch (e) {
      setError(e);
    }
  };
  return (
    <main class="signin">
      <form class="card" onSubmit={(e) => void submit(e)}>
        <h1>
          <Logo /> Atoll
        </h1>
        <p class="dim">
          On this machine, <code>atoll console</code> opens this page signed in.
          Elsewhere, sign in with an API key from{" "}
          <code>atoll key create --allow admin</code>.
        </p>
        {error ? (
          <div class="problem" role="alert">
            <strong>{words(error).text}</strong>
            <div>{words(error).hint}</div>
          </div>
        ) : null}
        <label class="field">
          <span>API key</span>
          <input
            type="password"
            autocomplete="current-password"
            value={key}
            onInput={(e) => setKey(e.currentTarget.value)}
            required
            autofocus
          />
        </label>
        <button class="btn primary" type="submit">
          Sign in
        </button>
        {signedIn() && <Button act={props.again}>Try again</Button>}
      </form>
    </main>
  );
}

function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <circle cx="16" cy="16" r="11" />
      <circle class="dot" cx="16" cy="16" r="3" />
    </svg>
  );
}

const themes = ["auto", "light", "dark"] as const;

function Shell({ caller }: { caller: Schemas["Caller"] }) {
  const route = useRoute();
  const connected = useConnected();
  const [palette, setPalette] = useState(false);
  const [menu, setMenu] = useState(false);
  const [theme, setTheme] = useState(
    () => localStorage.getItem("atoll.theme") ?? "auto",
  );
  useEffect(() => {
    document.documentElement.dataset["theme"] = theme;
    localStorage.setItem("atoll.theme", theme);
  }, [theme]);
  useEffect(() => setMenu(false), [route]);
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "k") {
        e.preventDefault();
        setPalette(true);
      }
      const typing = (e.target as HTMLElement).closest?.(
        "input,textarea,select,dialog,.xterm,.cm-editor,.vnc",
      );
      if (e.key === "/" && !typing) {
        const search =
          document.querySelector<HTMLElement>("input[type=search]");
        if (search) {
          e.preventDefault();
          search.focus();
        }
      }
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);

  const listed = pages.filter(
    (p) =>
      (p.id !== "machines" || caller.machines) &&
      (p.id !== "nodes" || caller.nodes),
  );
  const page = pages.find((p) => p.id === (route[0] ?? "")) ?? pages[0];
  useEffect(() => {
    document.title = [route[1], page.name, "Atoll"].filter(Boolean).join(" · ");
  }, [route]);
  return (
    <div class={"shell" + (menu ? " menu" : "")}>
      <a
        class="skip"
        href="#main"
        onClick={(e) => {
          e.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to content
      </a>
      <aside>
        <a class="brand" href="#/">
          <Logo /> Atoll
        </a>
        <nav aria-label="Pages">
          {listed.map((p) => (
            <a
              key={p.id}
              href={"#/" + p.id}
              aria-current={p === page ? "page" : undefined}
            >
              {p.name}
            </a>
          ))}
        </nav>
        <footer>
          <button class="link" onClick={() => setPalette(true)}>
            Go to… <kbd>Ctrl K</kbd>
          </button>
          <label>
            Theme{" "}
            <select
              value={theme}
              onChange={(e) => setTheme(e.currentTarget.value)}
            >
              {themes.map((t) => (
                <option key={t}>{t}</option>
              ))}
            </select>
          </label>
          <div class="dim" title={caller.key}>
            {caller.tenant} · {(caller.verbs ?? []).join(", ")}
          </div>
          <button class="link" onClick={() => void signOut()}>
            Sign out
          </button>
        </footer>
      </aside>
      <div class="top">
        <button
          class="icon"
          aria-label="Menu"
          aria-expanded={menu}
          onClick={() => setMenu(!menu)}
        >
          ☰
        </button>
        <strong>{page.name}</strong>
      </div>
      {!connected && (
        <div class="lost" role="alert">
          The connection to the daemon is lost. Trying again… If it does not
          run, start it with <code>atoll up</code>.
        </div>
      )}
      <main id="main" tabIndex={-1}>
        {page.show(route.slice(1), caller)}
      </main>
      {palette && <Palette pages={listed} close={() => setPalette(false)} />}
    </div>
  );
}

/** Leads to pages and sandboxes by a few letters of their names. */
function Palette(props: {
  pages: readonly { id: string; name: string }[];
  close: () => void;
}) {
  const { close } = props;
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const all = useLoad(
    () => get<{ sandboxes: Sandbox[] }>("v1/sandboxes", { limit: 200 }),
    [],
  );
  const found = useMemo(() => {
    const entries = [
      ...props.pages.map((p) => ({
        name: p.name,
        what: "page",
        to: "/" + p.id,
      })),
      { name: "New sandbox", what: "action", to: "/sandboxes//new" },
      ...(all.data?.sandboxes ?? []).map((s) => ({
        name: s.name,
        what: "sandbox",
        to: `/sandboxes/${s.id}`,
      })),
    ];
    const wanted = text.toLowerCase();
    return entries
      .filter((e) => e.name.toLowerCase().includes(wanted))
      .slice(0, 12);
  }, [text, all.data]);
  const choose = (i: number) => {
    const e = found[i];
    if (e) go(e.to);
    close();
  };
  return (
    <Dialog title="Go to" close={close}>
      <input
        aria-label="Page or sandbox"
        placeholder="Page or sandbox"
        value={text}
        autofocus
        onInput={(e) => {
          setText(e.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(e) => {
          if (e.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1));
          if (e.key === "ArrowUp") setAt(Math.max(at - 1, 0));
          if (e.key === "Enter") choose(at);
        }}
      />
      <ul class="palette" role="listbox" aria-label="Found">
        {found.map((e, i) => (
          <li
            key={e.to}
            role="option"
            aria-selected={i === at}
            onClick={() => choose(i)}
          >
            {e.name} <span class="dim">{e.what}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
