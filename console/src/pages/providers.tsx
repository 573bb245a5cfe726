import { get } from "../api";
import type { Schemas } from "../api";
import { useLoad } from "../live";
import { Card, Problem, State, Wall } from "../ui";

type Provider = Schemas["Provider"];

/** The limits of a sandbox that hold and that do not, with reasons. */
export function Held({ of }: { of: Provider["limits"] }) {
  const all = Object.entries(of ?? {}).sort();
  if (all.length === 0) return <span class="dim">not known</span>;
  const hold = all.filter(([, l]) => l.enforced).map(([name]) => name);
  const loose = new Map<string, string[]>(); // by reason
  for (const [name, l] of all)
    if (!l.enforced)
      loose.set(l.why ?? "", [...(loose.get(l.why ?? "") ?? []), name]);
  return (
    <>
      {hold.length > 0 && <div>{hold.join(", ")}: enforced</div>}
      {[...loose].map(([why, names]) => (
        <div key={why}>
          {names.join(", ")}: not enforced <span class="dim">{why}</span>
        </div>
      ))}
    </>
  );
}

/** What providers can do, by the names of capabilities. */
export function Providers() {
  const list = useLoad(
    () => get<{ providers: Provider[] }>("v1/providers"),
    [],
  );
  const all = list.data?.providers ?? [];
  const names = [
    ...new Set(all.flatMap((p) => Object.keys(p.capabilities ?? {}))),
  ].sort();
  return (
    <>
      <div class="head">
        <h1>Providers</h1>
      </div>
      <Problem error={list.error} />
      <div class="grid">
        {all.map((p) => (
          <Card
            key={p.name}
            title={
              <>
                {p.name} {p.default && <span class="chip">default</span>}
              </>
            }
            tools={<State state={p.available ? "ok" : "stopped"} />}
          >
            <p>{p.summary}</p>
            {p.problem && <p class="dim">{p.problem}</p>}
            {p.warning && <p class="problem">{p.warning}</p>}
            <dl>
              <dt>Isolation</dt>
              <dd>
                <Wall of={p.descriptor.isolation} />
              </dd>
              <dt>Limits</dt>
              <dd>
                <Held of={p.limits} />
              </dd>
              <dt>Verified</dt>
              <dd>{p.descriptor.verified}</dd>
              <dt>Price</dt>
              <dd>{p.descriptor.price}</dd>
            </dl>
          </Card>
        ))}
      </div>
      {names.length > 0 && (
        <Card title="What each can do">
          <div
            class="scroll"
            role="region"
            aria-label="Capabilities"
            tabIndex={0}
          >
            <table class="matrix">
              <thead>
                <tr>
                  <th scope="col">Capability</th>
                  {all.map((p) => (
                    <th scope="col" key={p.name}>
                      {p.name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {names.map((n) => (
                  <tr key={n}>
                    <td>{n}</td>
                    {all.map((p) => (
                      <td key={p.name}>
                        {p.capabilities?.[n] ? (
                          <span class="yes">yes</span>
                        ) : (
                          <span class="no">no</span>
                        )}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
      )}
    </>
  );
}
