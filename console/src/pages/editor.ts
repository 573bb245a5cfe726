import {
  defaultKeymap,
  history,
  historyKeymap,
  indentWithTab,
} from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import {
  defaultHighlightStyle,
  syntaxHighlighting,
} from "@codemirror/language";
import { unifiedMergeView } from "@codemirror/merge";
import { EditorState } from "@codemirror/state";
import type { Extension } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  keymap,
  lineNumbers,
} from "@codemirror/view";

function language(path: string): Extension {
  switch (/\.(\w+)$/.exec(path)?.[1]) {
    case "py":
      return python();
    case "js":
    case "mjs":
    case "jsx":
      return javascript({ jsx: true });
    case "ts":
    case "tsx":
      return javascript({ jsx: true, typescript: true });
    case "json":
      return json();
    case "md":
      return markdown();
    default:
      return [];
  }
}

const look = EditorView.theme({
  "&": { backgroundColor: "transparent", color: "inherit" },
  ".cm-content": { fontFamily: "var(--mono)", caretColor: "var(--text)" },
  ".cm-gutters": {
    backgroundColor: "var(--back)",
    color: "var(--dim)",
    border: "none",
  },
  ".cm-activeLine": { backgroundColor: "rgb(127 127 127 / 8%)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
});

const common = (path: string): Extension => [
  lineNumbers(),
  drawSelection(),
  syntaxHighlighting(defaultHighlightStyle),
  language(path),
  look,
];

/** Makes an editor. changed is called on every change. */
export function makeEditor(
  parent: HTMLElement,
  path: string,
  text: string,
  writable: boolean,
  changed: () => void,
): EditorView {
  return new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        common(path),
        history(),
        highlightActiveLine(),
        EditorState.readOnly.of(!writable),
        EditorView.contentAttributes.of({ "aria-label": path }),
        keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.updateListener.of((u) => {
          if (u.docChanged) changed();
        }),
      ],
    }),
  });
}

/** Makes a view of the difference of two texts. */
export function makeDiff(
  parent: HTMLElement,
  path: string,
  before: string,
  after: string,
): EditorView {
  return new EditorView({
    parent,
    state: EditorState.create({
      doc: after,
      extensions: [
        common(path),
        EditorState.readOnly.of(true),
        EditorView.editable.of(false),
        unifiedMergeView({ original: before, mergeControls: false }),
      ],
    }),
  });
}
