import { useEffect, useMemo, useState } from "preact/hooks";
import { lazy } from "./lazy";
import { linkEntry } from "./stream";
import type { StreamAccess } from "./stream";
import { Control, Problem, Toasts } from "./ui";

const Screen = lazy(() => import("./pages/screen"));
const Desktop = lazy(async () => {
  const { View } = await import("./pages/desktop");
  return { default: View };
});

/** What a link to a stream has in its fragment: an id, and a code until it was
 * used. */
export function linked(hash: string): { id: string; code: string } | undefined {
  const found = /^#view=([\w-]+)(?:\.([\w-]+))?$/.exec(hash);
  return found ? { id: found[1]!, code: found[2] ?? "" } : undefined;
}

/** A terminal or a desktop for someone who has a link to it, and nothing else. */
export function Linked(props: { id: string; code: string }) {
  const way = useMemo(() => linkEntry(props.id, props.code), []);
  const [access, setAccess] = useState<StreamAccess>();
  const [error, setError] = useState<unknown>();
  const [watching, setWatching] = useState(true);
  const [ended, setEnded] = useState("");
  useEffect(() => {
    history.replaceState(null, "", `${location.pathname}#view=${props.id}`);
    way.open().then(setAccess, setError);
  }, []);
  const what = access?.kind === "desktop" ? "Desktop" : "Terminal";
  useEffect(() => {
    document.title = access ? `${what} of ${access.sandbox} · Atoll` : "Atoll";
  }, [access]);
  const mayControl = access?.mode === "control";
  const words = mayControl
    ? watching
      ? "You watch."
      : "You are in control, together with the agent."
    : "You watch. The link does not allow more.";
  return (
    <main class="linked">
      <div class="row bar">
        <h1>
          {access
            ? `${what} of ${access.sandbox}`
            : error
              ? "Atoll"
              : "Opening…"}
        </h1>
        {access && !ended && <span class="dim">{words}</span>}
        {mayControl && (
          <div class="row end">
            <Control
              kind={watching ? "primary" : "plain"}
              watching={watching}
              ended={ended}
              act={() => setWatching(!watching)}
            />
          </div>
        )}
      </div>
      <Problem error={error} />
      {access?.kind === "terminal" && (
        <Screen entry={way} control={!watching} over={setEnded} shown />
      )}
      {access?.kind === "desktop" && (
        <Desktop entry={way} control={!watching} over={setEnded} quiet />
      )}
      {access?.kind === "port" && (
        <Problem
          error={
            new Error(
              "A page cannot show the bytes of a port. Ask for a link of: atoll port open",
            )
          }
        />
      )}
      <Toasts />
    </main>
  );
}
