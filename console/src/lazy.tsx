import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "./ui";

/** A component whose code is loaded when it is first shown. */
export function lazy<P>(
  load: () => Promise<{ default: ComponentType<P> }>,
): ComponentType<P> {
  let loaded: ComponentType<P> | undefined;
  return function Lazy(props: P) {
    const [, draw] = useState(0);
    const [error, setError] = useState<unknown>();
    useEffect(() => {
      if (loaded) return;
      load().then(
        (m) => {
          loaded = m.default;
          draw((n) => n + 1);
        },
        (e: unknown) => setError(e),
      );
    }, []);
    if (error) return <Problem error={error} />;
    const Shown = loaded;
    return Shown ? <Shown {...(props as any)} /> : null;
  };
}
