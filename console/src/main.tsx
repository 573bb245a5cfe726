import { render } from "preact";
import { App } from "./app";
import { linked, Linked } from "./link";
import "./style.css";

const link = linked(location.hash);
addEventListener("hashchange", () => {
  if (link || linked(location.hash)) location.reload();
});
render(link ? <Linked {...link} /> : <App />, document.getElementById("app")!);
