// @ts-check
import { render } from "preact";
import { begin } from "./session.js";
import { Shell, globalKey } from "./shell.jsx";
import "./styles/base.css";
import "./styles/controls.css";
import "./styles/shell.css";
import "./styles/media.css";
import "./styles/library.css";
import "./styles/video.css";
import "./styles/search.css";
import "./styles/cameras.css";

render(<Shell />, /** @type {HTMLElement} */ (document.getElementById("page")));
addEventListener("keydown", globalKey);
// A link with a token may be opened in a tab that shows the page already.
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) void begin();
});
void begin();
